"""Laws of the runner: however a text is cut, batched, shared, guessed at or interrupted, it is the same text."""

import dataclasses

import pytest
import torch

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, MoE, Norm, Rope
from tests.runtime.driving import BLOCK_SIZE, GREEDY, Driver, Text, alone, prompts, tiny_model

LENGTHS = (1, 7, 8, 9, 16, 23, 40)
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return [alone(model, Text(prompt), NUM_TOKENS) for prompt in prompts(*LENGTHS)]


def test_many_in_a_batch_equal_one_by_one(model: Decoder, expected: list[list[int]]) -> None:
    assert Driver(model).finish([Text(prompt) for prompt in prompts(*LENGTHS)], NUM_TOKENS) == expected


def test_answers_differ_between_prompts(expected: list[list[int]]) -> None:
    assert len({tuple(answer) for answer in expected}) == len(expected)


@pytest.mark.parametrize("chunk_size", [1, 7, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_a_chunked_prompt_equals_a_whole_one(model: Decoder, expected: list[list[int]], chunk_size: int) -> None:
    texts = [Text(prompt, chunk_size=chunk_size) for prompt in prompts(*LENGTHS)]
    assert Driver(model).finish(texts, NUM_TOKENS) == expected


def test_those_who_join_later_change_nothing(model: Decoder, expected: list[list[int]]) -> None:
    driver = Driver(model)
    texts = [Text(prompt, chunk_size=5) for prompt in prompts(*LENGTHS)]
    for count in range(1, len(texts)):
        driver.step(texts[:count])
    assert driver.finish(texts, NUM_TOKENS) == expected


@pytest.mark.parametrize("num_blocks_shared", [1, 2, 4])
def test_a_cached_prefix_equals_a_cold_one(model: Decoder, expected: list[list[int]], num_blocks_shared: int) -> None:
    driver = Driver(model)
    prompt = prompts(*LENGTHS)[-1]
    first = Text(prompt)
    driver.finish([first], NUM_TOKENS)
    second = Text(prompt, start=num_blocks_shared * BLOCK_SIZE, blocks=first.blocks[:num_blocks_shared])
    assert driver.finish([second], NUM_TOKENS) == expected[-1:]


@pytest.mark.parametrize("num_blocks_shared", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 7])
def test_a_chunk_reads_what_an_earlier_one_of_its_step_writes(
    model: Decoder, num_blocks_shared: int, length: int
) -> None:
    driver = Driver(model)
    stem, *ends = prompts(num_blocks_shared * BLOCK_SIZE, length, length)
    texts = [Text(stem + end) for end in ends]
    batch = driver.batch(texts[:1])
    texts[1].start, texts[1].blocks = len(stem), texts[0].blocks[:num_blocks_shared]
    joined = driver.batch(texts[1:])
    joined = joined._replace(chunks=batch.chunks + joined.chunks)
    driver.take(texts, joined, driver.runner.launch(joined).result())
    assert driver.finish(texts, NUM_TOKENS) == [alone(model, Text(stem + end), NUM_TOKENS) for end in ends]


def test_a_fork_equals_a_text_computed_anew(model: Decoder) -> None:
    prompt = prompts(21)[0]
    params = SamplingParams(seed=5, n=2)
    driver = Driver(model)
    first = Text(prompt, params)
    driver.step([first])
    shared, copied = len(prompt) // BLOCK_SIZE, driver.free.pop()
    fork = Text(prompt, params, choice=1, start=len(prompt) - 1, blocks=[*first.blocks[:shared], copied])
    driver.copies.append((first.blocks[shared], copied))
    assert driver.finish([first, fork], NUM_TOKENS) == [
        alone(model, Text(prompt, params, choice), NUM_TOKENS) for choice in (0, 1)
    ]


def test_a_preempted_text_goes_on_as_if_undisturbed(model: Decoder) -> None:
    prompt = prompts(13)[0]
    params = SamplingParams(seed=9, repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=6, stop_token_ids=(1, 2))
    undisturbed = alone(model, Text(prompt, params), NUM_TOKENS)
    for num_before in range(1, NUM_TOKENS, 3):
        driver = Driver(model)
        text = Text(prompt, params)
        driver.finish([text], num_before)
        driver.leave(text)
        assert driver.finish([text], NUM_TOKENS) == [undisturbed]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3), SamplingParams(seed=4, frequency_penalty=0.8)])
@pytest.mark.parametrize("wrong_every", [1, 2, 3, 100])
def test_drafts_change_no_token(model: Decoder, params: SamplingParams, wrong_every: int) -> None:
    texts = [Text(prompt, params) for prompt in prompts(9, 16, 30)]
    plain = Driver(model).finish(texts, NUM_TOKENS)
    for text, answer in zip(texts, plain):
        text.drafts = [(token + (place % wrong_every == 0)) % 96 for place, token in enumerate(answer)]
        for place in range(0, NUM_TOKENS, 5):
            text.drafts[place] = -1
    again = [Text(text.prompt, params, drafts=text.drafts) for text in texts]
    driver = Driver(model)
    assert driver.finish(again, NUM_TOKENS) == plain
    if wrong_every == 100:
        assert next(driver.steps) < NUM_TOKENS


def test_a_step_that_failed_can_be_launched_again_whole_and_in_part(model: Decoder) -> None:
    reference = [Text(prompt) for prompt in prompts(8, 15, 3)]
    plain = Driver(model).finish(reference, NUM_TOKENS)
    texts = [Text(prompt) for prompt in prompts(8, 15, 3)]
    driver = Driver(model)
    for number in range(NUM_TOKENS):
        batch = driver.batch(texts)
        with _failing(driver.runner, at=number % 3), pytest.raises(RuntimeError, match="planted"):
            driver.runner.launch(batch)
        halves = [driver.runner.launch(batch.only(indices)).result() for indices in ([0], [1, 2])]
        whole = driver.runner.launch(batch).result()
        assert whole.tokens == halves[0].tokens + halves[1].tokens
        driver.take(texts, batch, whole)
    assert [text.answer for text in texts] == plain


class _failing:  # noqa: N801 - reads as a verb
    """The model raises, before its first layer, after its last, or when scores are asked for."""

    def __init__(self, runner: object, at: int) -> None:
        self._model, self._at = runner._forward._model, at  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("planted")

        if self._at == 2:
            self._model.scores = fail
            self._undo = lambda: delattr(self._model, "scores")
        else:
            part = self._model.embedding if self._at == 0 else self._model.layers[-1].mlp
            self._undo = part.register_forward_hook(fail).remove

    def __exit__(self, *_: object) -> None:
        self._undo()


def test_steps_under_way_can_be_launched_again_in_order(model: Decoder) -> None:
    """When one of two steps under way is lost, both are launched again; what they did the first time leaves no trace."""
    prompt = prompts(BLOCK_SIZE)[0]
    plain = alone(model, Text(prompt), 3 * BLOCK_SIZE)
    text, driver = Text(prompt), Driver(model)
    driver.step([text])
    for _ in range(3 * BLOCK_SIZE - 2):
        first = driver.batch([text])
        ahead = dataclasses.replace(text, tokens=[*text.tokens, 0], start=text.start + 1)
        second = driver.batch([ahead])
        driver.runner.launch(first)
        driver.runner.launch(second)
        driver.take([text], first, driver.runner.launch(first).result())
        text.blocks = ahead.blocks
        again = driver.runner.launch(second).result()
        assert again.tokens[0] == (plain[len(text.answer)],)
    assert text.answer == plain[: len(text.answer)]


def test_an_empty_batch_does_its_copies(model: Decoder) -> None:
    driver = Driver(model)
    text = Text(prompts(BLOCK_SIZE)[0])
    driver.step([text])
    output = driver.runner.launch(Batch(90, (), ((text.blocks[0], 5),))).result()
    assert output.tokens == ()
    for layer in driver.runner._cache.layers:
        torch.testing.assert_close(layer.keys[5], layer.keys[text.blocks[0]])


def test_a_text_that_breaks_the_model_fails_alone(model: Decoder, expected: list[list[int]]) -> None:
    poison = min(set(range(96)).difference(*prompts(*LENGTHS), *expected))
    poisoned = tiny_model()
    poisoned.embedding.weight.data[poison] = torch.nan
    texts = [Text(prompt) for prompt in prompts(*LENGTHS)]
    bad = Text((3, poison, 4, 5, 6, 7, 8, 9, 10), chunk_size=4)
    driver = Driver(poisoned)
    output = driver.step([texts[0], bad, *texts[1:]])
    assert [index for index, _ in output.failures] == [1]
    assert "not finite" in output.failures[0][1]
    assert output.tokens[1] == ()
    driver.leave(bad)
    assert driver.finish(texts, NUM_TOKENS) == expected
    assert driver.finish([Text(texts[-1].prompt)], NUM_TOKENS) == expected[-1:]  # in the blocks the bad one left


@pytest.mark.parametrize("token_id", [-1, 96, 2**31])
def test_a_token_outside_the_vocabulary_fails_alone(model: Decoder, expected: list[list[int]], token_id: int) -> None:
    texts = [Text(prompt) for prompt in prompts(*LENGTHS)]
    driver = Driver(model)
    output = driver.step([Text((1, token_id, 2)), *texts])
    assert output.failures == ((0, f"token id {token_id} is outside the vocabulary of 96"),)
    assert driver.finish(texts, NUM_TOKENS) == expected


ROPE = Rope(16, 10_000.0)
SHAPES = {
    "moe": {"layers": (Layer(GQA(4, 2, 16, ROPE, 0.25), MoE(4, 2, GatedMLP(24, "silu"), True)),) * 2},
    "sinks": {
        "layers": (
            Layer(GQA(4, 2, 16, ROPE, 0.25, window=5, sinks=True), GatedMLP(48, "swiglu_clamped", True)),
            Layer(GQA(4, 4, 16, ROPE, 0.25, sinks=True, qkv_bias=True, out_bias=True), GatedMLP(48, "silu")),
        )
    },
    "capped": {
        "layers": (
            Layer(GQA(4, 1, 16, ROPE, 0.25, window=9, logit_softcap=5.0), GatedMLP(48, "gelu_tanh"), "sandwich"),
        )
        * 2,
        "logit_softcap": 4.0,
        "embedding_scale": 5.5,
        "tied_embedding": True,
    },
    "post": {"layers": (Layer(GQA(4, 2, 16, ROPE, 0.25, qk_norm="full"), GatedMLP(48, "silu"), "post"),) * 2},
    "learned": {
        "layers": (Layer(GQA(2, 2, 16, None, 0.25, qk_norm="head"), GatedMLP(48, "gelu")),) * 2,
        "learned_positions": 256,
        "norm": Norm("layer"),
    },
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_laws_hold_for_every_part(shape: str, dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype, **SHAPES[shape])
    expected = [alone(model, Text(prompt), 6) for prompt in prompts(*LENGTHS)]
    driver = Driver(model)
    answers = driver.finish([Text(prompt, chunk_size=7) for prompt in prompts(*LENGTHS)], 6)
    same = sum(mine == theirs for mine, theirs in zip(answers, expected))
    assert same == len(expected) if dtype == torch.float32 else same >= len(expected) - 2


def test_scores_are_made_for_few_positions_at_a_time(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never for a whole prompt: only where a token is drawn, and in slices where a prompt's own tokens are scored."""
    asked: list[int] = []
    plain = model.scores

    def spy(hidden: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden))
        return plain(hidden)

    monkeypatch.setattr(model, "scores", spy)
    Driver(model).step([Text(prompt) for prompt in prompts(150, 20, 30)])
    assert asked == [3]
    asked.clear()
    Driver(model).step([Text(prompts(150)[0], SamplingParams(prompt_logprobs=0))])
    assert max(asked) <= 64
    asked.clear()
    monkeypatch.setattr("penstock.runtime.execution.eager.forward.LOGITS_AT_ONCE", 2 * 96)
    texts = [Text(prompt) for prompt in prompts(*LENGTHS)]
    Driver(model).step(texts)
    assert asked == [2, 2, 2, 1]
