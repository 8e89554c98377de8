"""Every sampling parameter does what it says, alone as in company."""

import dataclasses
import math

import pytest
import torch

from penstock.runtime.core.batch import Logprob
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.layers.decoder import Decoder
from tests.runtime.driving import GREEDY, Driver, Text, all_logits, alone, prompts, tiny_model

NUM_TOKENS = 24
EVERY_PARAMETER = [
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.6),
    SamplingParams(seed=3, top_k=3),
    SamplingParams(seed=4, top_p=0.5),
    SamplingParams(seed=5, min_p=0.3),
    SamplingParams(seed=6, presence_penalty=1.5),
    SamplingParams(seed=7, frequency_penalty=-1.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.8),
    SamplingParams(seed=9, logit_bias=((5, 40.0), (6, 39.0), (7, -100.0))),
    SamplingParams(seed=10, allowed_token_ids=(3, 50, 51, 52)),
    SamplingParams(seed=11, banned_sequences=((4,), (5, 6), (7, 8, 9))),
    SamplingParams(seed=12, min_tokens=10, stop_token_ids=tuple(range(48))),
    SamplingParams(seed=13, logprobs=3, prompt_logprobs=2),
    SamplingParams(seed=14, temperature=1.4, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.2, logprobs=0),
]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


def texts(params: list[SamplingParams]) -> list[Text]:
    lengths = [3 + number for number in range(len(params))]
    return [Text(prompt, sampling, chunk_size=9) for prompt, sampling in zip(prompts(*lengths), params)]


def test_every_parameter_draws_in_company_as_alone(model: Decoder) -> None:
    together = texts(EVERY_PARAMETER)
    answers = Driver(model, max_sequences=len(together)).finish(together, NUM_TOKENS)
    for mine, single in zip(together, texts(EVERY_PARAMETER)):
        assert mine.answer[:NUM_TOKENS] == alone(model, single, NUM_TOKENS)
        for reported, expected in zip(mine.logprobs + mine.prompt_logprobs, single.logprobs + single.prompt_logprobs):
            assert reported.token_id == expected.token_id
            assert math.isclose(reported.logprob, expected.logprob, abs_tol=1e-4)
            assert [token for token, _ in reported.top] == [token for token, _ in expected.top]
    assert len({tuple(answer) for answer in answers}) == len(answers)


def test_seeds_and_choices_are_different_texts_and_equal_ones_equal(model: Decoder) -> None:
    prompt = prompts(6)[0]
    sampling = [(seed, choice) for seed in range(4) for choice in range(3)]
    answers = [alone(model, Text(prompt, SamplingParams(seed=seed), choice), 12) for seed, choice in sampling]
    assert len({tuple(answer) for answer in answers}) == len(answers)
    assert alone(model, Text(prompt, SamplingParams(seed=2), 1), 12) == answers[sampling.index((2, 1))]


def test_a_temperature_of_nothing_is_greedy(model: Decoder) -> None:
    prompt = prompts(12)[0]
    greedy = alone(model, Text(prompt), NUM_TOKENS)
    for params in (
        SamplingParams(seed=1, temperature=1e-45),
        SamplingParams(seed=2, temperature=1e-6),
        SamplingParams(seed=3, top_k=1),
        SamplingParams(seed=4, top_p=1e-9),
        SamplingParams(seed=5, min_p=1.0),
    ):
        assert alone(model, Text(prompt, params), NUM_TOKENS) == greedy


def test_only_allowed_tokens_are_drawn(model: Decoder) -> None:
    params = SamplingParams(seed=1, temperature=5.0, allowed_token_ids=(3, 50, 51, 200))
    answer = alone(model, Text(prompts(9)[0], params), 60)
    assert set(answer) == {3, 50, 51}


def test_banned_sequences_are_never_completed(model: Decoder) -> None:
    allowed = (1, 2, 3)
    banned = ((1, 2), (2, 2), (3, 1, 3), (97,), (3, 98))
    params = SamplingParams(seed=8, allowed_token_ids=allowed, banned_sequences=banned)
    prompt = (1, 2, 2, 3, 1)
    tokens = [*prompt, *alone(model, Text(prompt, params), 100)]
    drawn = range(len(prompt), len(tokens))
    for run in banned:
        assert not any(tuple(tokens[place + 1 - len(run) : place + 1]) == run for place in drawn)
    assert {tuple(tokens[place - 1 : place + 1]) for place in drawn} == {
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
        (3, 1),
        (3, 2),
        (3, 3),
    }


def test_stop_tokens_are_not_drawn_before_the_least_length(model: Decoder) -> None:
    stops = tuple(range(90))
    for min_tokens in (1, 5, 12):
        params = SamplingParams(seed=3, min_tokens=min_tokens, stop_token_ids=stops)
        answer = alone(model, Text(prompts(20)[0], params, chunk_size=6), 40)
        assert min(answer[:min_tokens]) >= 90
        assert min(answer[min_tokens:]) < 90


def test_a_bias_moves_probability(model: Decoder) -> None:
    prompt = prompts(5)[0]
    certain = SamplingParams(seed=1, logit_bias=((17, 100.0), (300, 100.0)))
    assert set(alone(model, Text(prompt, certain), 20)) == {17}
    never = SamplingParams(seed=1, allowed_token_ids=(17, 18), logit_bias=((17, -100.0),))
    assert set(alone(model, Text(prompt, never), 20)) == {18}


def test_a_text_that_may_draw_nothing_fails_alone(model: Decoder) -> None:
    impossible = SamplingParams(allowed_token_ids=(1, 2), banned_sequences=((1,), (2,)))
    good, bad = Text(prompts(7)[0]), Text(prompts(7)[0], impossible)
    driver = Driver(model)
    output = driver.step([bad, good])
    assert [index for index, _ in output.failures] == [0]
    assert "no token may be drawn" in output.failures[0][1]
    assert driver.finish([good], NUM_TOKENS) == [alone(model, Text(prompts(7)[0]), NUM_TOKENS)]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=5, temperature=0.3, top_k=2, frequency_penalty=1.0)])
def test_logprobs_are_those_of_the_model_before_any_option(model: Decoder, params: SamplingParams) -> None:
    text = Text(prompts(14)[0], dataclasses.replace(params, logprobs=7), chunk_size=5)
    Driver(model).finish([text], 10)
    raw = torch.log_softmax(all_logits(model, text.tokens), dim=-1)
    for place, reported in enumerate(text.logprobs, len(text.prompt)):
        check_logprob(reported, raw[place - 1], text.tokens[place], 7)
    assert len(text.logprobs) == 10


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 13, 14, 200])
def test_prompt_logprobs_cover_every_token_but_the_first_however_the_prompt_is_cut(
    model: Decoder, chunk_size: int
) -> None:
    members = Text(prompts(30)[0], chunk_size=3)
    text = Text(prompts(14)[0], SamplingParams(prompt_logprobs=4), chunk_size=chunk_size)
    Driver(model).finish([members, text], 3)
    raw = torch.log_softmax(all_logits(model, list(text.prompt)), dim=-1)
    assert len(text.prompt_logprobs) == len(text.prompt) - 1
    for place, reported in enumerate(text.prompt_logprobs, 1):
        check_logprob(reported, raw[place - 1], text.prompt[place], 4)
    assert members.prompt_logprobs == members.logprobs == text.logprobs == []


def test_prompt_logprobs_longer_than_a_slice(model: Decoder) -> None:
    text = Text(prompts(150)[0], SamplingParams(prompt_logprobs=0))
    Driver(model).step([text])
    raw = torch.log_softmax(all_logits(model, list(text.prompt)), dim=-1)
    for place, reported in enumerate(text.prompt_logprobs, 1):
        check_logprob(reported, raw[place - 1], text.prompt[place], 0)


def check_logprob(reported: Logprob, raw: torch.Tensor, token: int, count: int) -> None:
    assert reported.token_id == token
    assert math.isclose(reported.logprob, float(raw[token]), abs_tol=1e-4)
    likeliest = raw.topk(count)
    assert [token for token, _ in reported.top] == likeliest.indices.tolist()
    torch.testing.assert_close(torch.tensor([value for _, value in reported.top]), likeliest.values, atol=1e-4, rtol=0)


def test_drafts_keep_their_logprobs(model: Decoder) -> None:
    params = SamplingParams(seed=2, logprobs=2)
    plain = Text(prompts(11)[0], params)
    answer = Driver(model).finish([plain], 12)[0]
    guessed = Text(prompts(11)[0], params, drafts=[-1, *answer[1:5], 0, *answer[6:]])
    Driver(model).finish([guessed], 12)
    for mine, theirs in zip(guessed.logprobs, plain.logprobs):
        assert mine.token_id == theirs.token_id
        assert math.isclose(mine.logprob, theirs.logprob, abs_tol=1e-4)
