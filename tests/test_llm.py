"""Laws of the offline engine: who reads does not matter, nothing is lost, and what is closed is given back."""

import weakref

import numpy as np
import pytest
import torch
import transformers

from penstock import LLM, ConfigError, EngineError, RequestError, SamplingParams
from penstock.runtime.core.runner import Runner
from tests.offline import prompts, tiny_llm
from tests.real import MINILM, model_path

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def test_streams_read_in_turns_are_as_each_read_alone() -> None:
    asked = prompts(3)
    with tiny_llm() as llm:
        alone = [llm.generate(prompt, GREEDY)[0].choices[0].token_ids for prompt in asked]
        completions = []
        for updates in zip(*(llm.stream(prompt, GREEDY) for prompt in asked), strict=True):
            assert all(update.num_tokens == 1 for update in updates)
            completions = [update.completion for update in updates]
    assert [completion.choices[0].token_ids for completion in completions] == alone


def test_more_prompts_than_may_wait_are_all_answered() -> None:
    asked = prompts(60)
    with tiny_llm() as roomy, tiny_llm(max_waiting=3, max_waiting_tokens=50, max_sequences=4) as narrow:
        expected = [completion.choices[0].token_ids for completion in roomy.generate(asked, GREEDY)]
        found = narrow.generate(asked, GREEDY)
    assert [completion.choices[0].token_ids for completion in found] == expected
    assert [completion.index for completion in found] == list(range(60))


def test_leaving_a_stream_frees_all_it_held() -> None:
    with tiny_llm(prefix_caching=False) as llm:
        for _ in llm.stream(prompts(1)[0], SamplingParams(max_tokens=100)):
            break
        llm.generate([1, 2, 3], GREEDY)
        assert not llm.engine.has_work
        assert llm.engine.scheduler.pool.usage_fraction == 0.0
        llm.engine.scheduler.check()


def test_a_prompt_that_cannot_be_served_is_told_before_any_is_computed() -> None:
    with tiny_llm() as llm, pytest.raises(RequestError, match="maximum context length is 160"):
        llm.generate([[1, 2, 3], [1] * 170], GREEDY, on_update=lambda update: pytest.fail("computed"))


class Failing:
    """Fails every step that holds a sequence in a certain row."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, batch):  # type: ignore[no-untyped-def]
        if any(len(chunk.token_ids) == 5 for chunk in batch.chunks):
            raise ValueError("a bad one")
        return self._runner.launch(batch)


def test_one_that_fails_is_raised_when_the_others_have_ended() -> None:
    asked = [[1, 2, 3], [1, 2, 3, 4, 5], [7, 8]]
    with tiny_llm() as llm:
        llm.engine.runner = Failing(llm.engine.runner)
        seen = {}
        with pytest.raises(EngineError, match="a bad one"):
            llm.generate(asked, GREEDY, on_update=lambda update: seen.update({update.completion.index: update}))
    reasons = {index: update.completion.choices[0].finish.reason for index, update in seen.items()}
    assert reasons == {0: "length", 1: "error", 2: "length"}


def test_best_of_keeps_the_likeliest() -> None:
    with tiny_llm() as llm:
        every = llm.generate([5, 6], SamplingParams(n=4, seed=3, max_tokens=6, logprobs=0))[0]
        best = llm.generate([5, 6], SamplingParams(seed=3, max_tokens=6), best_of=4)[0]
    assert len(best.choices) == 1
    assert best.choices[0].token_ids == max(every.choices, key=lambda choice: choice.mean_logprob).token_ids


def test_scores_are_those_of_the_tokens() -> None:
    with tiny_llm() as llm:
        (reported,) = llm.score([3, 1, 4, 1, 5])
        (completion,) = llm.generate([3, 1, 4, 1], SamplingParams(logprobs=96, max_tokens=1))
    assert [entry.token_id for entry in reported] == [1, 4, 1, 5]
    assert reported[-1].logprob == pytest.approx(dict(completion.choices[0].logprobs[0].top)[5], abs=1e-5)


def test_what_is_closed_is_given_back_and_says_so() -> None:
    llm = tiny_llm()
    stream = llm.stream([1, 2], GREEDY)
    next(stream)
    weights = weakref.ref(llm.loaded.network)
    llm.close()
    assert weights() is None
    for use in (lambda: llm.generate([1]), lambda: llm.embed("x"), lambda: llm.spec, lambda: next(stream)):
        with pytest.raises(ConfigError, match="closed"):
            use()
    llm.close()


def test_a_model_without_words_takes_token_ids_only() -> None:
    with tiny_llm() as llm:
        with pytest.raises(ConfigError, match="has no tokenizer"):
            llm.generate("text", GREEDY)
        with pytest.raises(ConfigError, match="makes no vectors"):
            llm.embed([[1, 2]])


# ---- vectors

TEXTS = [
    "A penstock is a channel that carries water to a turbine.",
    "Water drives the wheel.",
    "ein kurzer Satz",
    "",
    "The moon has no air. " * 40,
    "x",
]


@pytest.fixture(scope="module")
def encoder() -> LLM:
    return LLM(str(model_path(MINILM)))


@torch.inference_mode()
def test_vectors_are_those_of_transformers(encoder: LLM) -> None:
    """Its encoder over the same words, and the mean of all states, made to length 1."""
    path = model_path(MINILM)
    model = transformers.BertModel.from_pretrained(path, add_pooling_layer=False).eval()
    tokenizer = encoder.files.tokenizer
    found = encoder.embed(TEXTS)
    assert (found.shape, found.dtype) == ((len(TEXTS), 384), np.float32)
    for text, vector in zip(TEXTS, found, strict=True):
        ids = torch.tensor([tokenizer.encode(text, special=True)])
        expected = torch.nn.functional.normalize(model(input_ids=ids).last_hidden_state[0].mean(0), dim=0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-4)


def test_a_vector_is_its_text_s_own(encoder: LLM) -> None:
    together = encoder.embed(TEXTS)
    np.testing.assert_allclose(encoder.embed(TEXTS[1]), together[1:2], atol=1e-5)
    ids = encoder.files.tokenizer.encode(TEXTS[0], special=True)
    np.testing.assert_allclose(encoder.embed([ids]), together[:1], atol=1e-5)
    assert together[0] @ together[1] > together[0] @ together[2]


def test_fewer_dimensions_are_the_first_ones_made_long_again(encoder: LLM) -> None:
    whole, few = encoder.embed(TEXTS), encoder.embed(TEXTS, dimensions=64)
    assert few.shape == (len(TEXTS), 64)
    np.testing.assert_allclose(np.linalg.norm(few, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(few, whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True), atol=1e-6)
    for wrong in (0, 385):
        with pytest.raises(RequestError, match=f"dimensions is {wrong}; this model has 1 to 384"):
            encoder.embed(TEXTS, dimensions=wrong)


def test_a_text_that_is_too_long_is_refused_by_number_and_never_cut(encoder: LLM) -> None:
    with pytest.raises(RequestError, match=r"text 1 has 602 tokens; this model takes 1 to 512"):
        encoder.embed(["short", "word " * 600])


def test_an_encoder_generates_nothing_and_says_what_it_does(encoder: LLM) -> None:
    with pytest.raises(ConfigError, match=r"makes vectors and generates no text; use LLM\.embed"):
        encoder.generate("Hello")
