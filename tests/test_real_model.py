"""The laws on the default model: its tokens are those of `transformers`, and nothing about how they are computed shows.

Exact number types are asked for by name: left to itself, a CPU computes quantized files with rounding of its own.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock import LLM, SamplingParams
from penstock.config import configure
from penstock.errors import ConfigError
from penstock.offline.completion import Completion
from penstock.offline.perplexity import measure
from penstock.runtime.core.batch import Batch, Logprob
from tests.machine import NUM_CORES
from tests.real import DEFAULT, WIKITEXT, model_path

OPENINGS = (
    "The history of {} begins",
    "Write a short story about {}.\n\n",
    "Question: What is {}?\nAnswer:",
    "def {}(first, second):\n",
    "Three facts about {}:\n1.",
)
TOPICS = ("water", "bread", "the moon", "music", "a clock", "winter", "paper", "the sea", "a bridge", "sleep")
ALL_PROMPTS = [opening.format(topic) for opening, topic in product(OPENINGS, TOPICS)]
PROMPTS = ALL_PROMPTS[::5]
STRIDE = 3
FEW = PROMPTS[::STRIDE]
NUM_TOKENS = 48
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
TIE = 1e-4
"""Scores this close may come in either order: the order of additions decides."""
BATCH_TIE = 1e-3
ROUNDED_TIE = 0.125
"""A bfloat16 holds a score of 16 to 32, as the best ones are, in steps of an eighth. Within one, `transformers` itself in
bfloat16 does not keep to its own order in float32."""
SHORT = replace(GREEDY, max_tokens=24)
LONG = " ".join(f"Item {number} of the list is called {topic}." for number, topic in zip(range(60), TOPICS * 6))


@pytest.fixture(scope="module", autouse=True)
def a_thread_a_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_CORES)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(model_path(DEFAULT)), dtype="float32", max_context=2048) as model:
        yield model


@pytest.fixture(scope="module")
def answers(llm: LLM) -> list[Completion]:
    """All prompts at once, undisturbed."""
    return llm.generate(PROMPTS, GREEDY)


def another(llm: LLM, **settings: Any) -> LLM:
    """An engine of its own over the same weights."""
    return LLM.over(llm.loaded, configure(llm.config, **settings))


def check_same(found: Completion, expected: Completion) -> None:
    """The same tokens as far as they go, up to a tie: after one, either text is right."""
    ours, theirs = found.choices[0], expected.choices[0]
    assert 0 < len(ours.logprobs) <= len(theirs.logprobs)
    for one, other in zip(ours.logprobs, theirs.logprobs):
        if one.token_id != other.token_id:
            (_, best), (_, second) = other.top
            assert best - second < BATCH_TIE, f"{ours.text!r} is not {theirs.text!r}"
            return
    assert theirs.text.startswith(ours.text)


# ---- transformers


@dataclass(frozen=True)
class Reference:
    """What `transformers` foresees at each place of a text: [tokens, vocabulary] log probabilities, summed up."""

    best: torch.Tensor
    best_logprobs: torch.Tensor
    margins: torch.Tensor
    """By which the best is ahead of the second."""
    reported_logprobs: torch.Tensor
    """Of the tokens that really follow."""


@pytest.fixture(scope="module")
def reference(answers: list[Completion]) -> list[Reference]:
    return foresee(answers)


def foresee(answers: list[Completion]) -> list[Reference]:
    """One pass over each prompt and our answer to it: had theirs been another, it would show at the first difference."""
    path = model_path(DEFAULT)
    with pytest.MonkeyPatch.context() as patch:
        # Its loader asks for a library that spreads a model over devices, and then uses nothing of it.
        patch.setattr("transformers.modeling_utils.is_accelerate_available", lambda *versions: True)
        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for completion in answers:
            reported = completion.choices[0].token_ids
            tokens = torch.tensor([[*completion.prompt_ids, *reported]])
            logits = model(input_ids=tokens, logits_to_keep=NUM_TOKENS + 1).logits[0, :-1]
            logprobs = torch.log_softmax(logits, dim=-1)
            top, ids = logprobs.topk(2)
            reported_logprobs = logprobs.gather(1, torch.tensor(reported)[:, None])[:, 0]
            found.append(Reference(ids[:, 0], top[:, 0], top[:, 0] - top[:, 1], reported_logprobs))
    return found


def test_greedy_tokens_are_those_of_transformers(answers: list[Completion], reference: list[Reference]) -> None:
    check_tokens(answers, reference)


@pytest.mark.slow
def test_greedy_tokens_of_fifty_prompts_are_those_of_transformers(llm: LLM) -> None:
    answers = llm.generate(ALL_PROMPTS, GREEDY)
    check_tokens(answers, foresee(answers))


def check_tokens(answers: list[Completion], reference: list[Reference]) -> None:
    """At a tie the text goes on with our token, so that every token of every text is compared."""
    num_ties = 0
    for completion, theirs in zip(answers, reference, strict=True):
        reported = torch.tensor(completion.choices[0].token_ids)
        differs = theirs.best != reported
        assert (theirs.best_logprobs - theirs.reported_logprobs)[differs].lt(TIE).all(), completion.prompt
        num_ties += int(differs.sum())
        ours = torch.tensor([entry.logprob for entry in completion.choices[0].logprobs])
        torch.testing.assert_close(ours, theirs.reported_logprobs, atol=2e-3, rtol=0)
    assert num_ties <= 3


def test_bfloat16_agrees_with_transformers(answers: list[Completion], reference: list[Reference]) -> None:
    texts = [[*completion.prompt_ids, *completion.choices[0].token_ids] for completion in answers]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    with LLM(str(model_path(DEFAULT)), dtype="bfloat16", max_context=2048) as rounded:
        reported = [completion.prompt_logprobs[-NUM_TOKENS:] for completion in rounded.generate(texts, params)]
    ours = torch.tensor([entry.top[0][0] for entries in reported for entry in entries])
    is_same = ours == torch.cat([theirs.best for theirs in reference])
    is_tie = torch.cat([theirs.margins for theirs in reference]) < ROUNDED_TIE
    assert len(is_same) == len(PROMPTS) * NUM_TOKENS
    assert (is_same | is_tie).float().mean() >= 0.995
    assert is_same.float().mean() >= 0.97


# ---- how it is computed does not show


def test_many_together_are_as_each_alone(llm: LLM, answers: list[Completion]) -> None:
    alone = another(llm, prefix_caching=False)
    for number in range(0, len(PROMPTS), 5):
        check_same(alone.generate(PROMPTS[number], SHORT)[0], answers[number])


@pytest.mark.parametrize("max_batch_tokens", [7, pytest.param(64, marks=pytest.mark.slow)])
def test_a_prompt_in_chunks_is_as_a_whole_one(llm: LLM, max_batch_tokens: int) -> None:
    prompt = LONG[:600]
    whole = another(llm, prefix_caching=False).generate(prompt, SHORT)[0]
    chunked = another(llm, prefix_caching=False, max_batch_tokens=max_batch_tokens, max_sequences=4)
    check_same(chunked.generate(prompt, SHORT)[0], whole)


class Counting:
    """A runner that counts the tokens it is asked to compute."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.num_tokens = 0

    def launch(self, batch: Batch) -> Any:
        self.num_tokens += batch.num_tokens
        return self._runner.launch(batch)


@pytest.mark.slow
def test_a_cached_beginning_is_as_a_cold_one_and_only_the_rest_is_computed(llm: LLM) -> None:
    beginning = llm.files.tokenizer.encode(LONG, special=True)[:96]
    endings = (FEW[0], FEW[1], "".join(FEW[2:5]))
    asked = [[*beginning, *llm.files.tokenizer.encode(ending, special=False)] for ending in endings]
    cold = another(llm, prefix_caching=False)
    warm = another(llm)
    counting = warm.engine.runner = Counting(warm.engine.runner)
    for number, prompt in enumerate(asked):
        before = counting.num_tokens
        found = warm.generate(prompt, SHORT)[0]
        check_same(found, cold.generate(prompt, SHORT)[0])
        assert found.prefix is not None
        assert found.prefix.num_tokens == (96 if number else 0)
        # Why no more was found is told where more could have been: where whole blocks follow.
        assert bool(found.prefix.miss) == (number == 0 or len(prompt) - 96 > 16)
        assert (
            counting.num_tokens - before == len(prompt) - found.prefix.num_tokens + len(found.choices[0].token_ids) - 1
        )


def test_a_beginning_that_many_share_is_computed_once_though_they_come_together(llm: LLM) -> None:
    params = replace(SHORT, max_tokens=8)
    beginning = llm.files.tokenizer.encode(LONG, special=True)[:128]
    asked = [[*beginning, *llm.files.tokenizer.encode(ending, special=False)] for ending in FEW[:4]]
    cold = another(llm, prefix_caching=False).generate(asked, params)
    warm = another(llm)
    counting = warm.engine.runner = Counting(warm.engine.runner)
    for found, expected in zip(warm.generate(asked, params), cold, strict=True):
        check_same(found, expected)
    num_prompt = counting.num_tokens - len(asked) * (params.max_tokens - 1)
    assert num_prompt == 128 + sum(len(prompt) - 128 for prompt in asked)


@pytest.mark.slow
def test_those_pushed_out_are_as_if_undisturbed(llm: LLM, answers: list[Completion]) -> None:
    crowded = another(llm, num_blocks=10, max_sequences=8)
    for found, number in zip(crowded.generate(FEW, GREEDY), range(0, len(PROMPTS), STRIDE), strict=True):
        check_same(found, answers[number])
    assert crowded.engine.scheduler.num_preemptions > 0
    crowded.engine.scheduler.check()


def test_a_stream_is_as_the_whole_also_when_read_in_turns(llm: LLM, answers: list[Completion]) -> None:
    streams = [llm.stream(prompt, SHORT) for prompt in FEW[:3]]
    texts, last = [""] * 3, [None] * 3
    for updates in zip(*streams, strict=True):
        for number, update in enumerate(updates):
            texts[number] += update.text
            last[number] = update.completion
    for number, completion in enumerate(last):
        check_same(completion, answers[STRIDE * number])
        assert texts[number] == completion.text


@pytest.mark.slow
def test_a_seed_gives_its_text_in_any_batch_and_after_a_restart(llm: LLM) -> None:
    prompt = FEW[1]
    params = [SamplingParams(seed=seed, temperature=0.9, top_p=0.95, max_tokens=24) for seed in range(6)]
    together = [completion.text for completion in another(llm).generate([prompt] * 6, params)]
    assert len(set(together)) == 6
    alone = another(llm, prefix_caching=False, max_batch_tokens=16, max_sequences=4)
    assert alone.generate(prompt, params[4])[0].text == together[4]
    assert generate_anew(prompt, seed=4, max_tokens=24) == together[4]


def generate_anew(prompt: str, seed: int, max_tokens: int) -> str:
    """In another process, from the command line."""
    flags = ["--dtype", "float32", "--temperature", "0.9", "--top-p", "0.95", "--max-tokens", str(max_tokens)]
    command = [sys.executable, "-m", "penstock", "generate", *flags, "--seed", str(seed), "--", prompt]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.removesuffix("\n")


# ---- text


def test_a_chat_ends_by_itself_and_the_next_turn_reuses_it(llm: LLM) -> None:
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0.0, max_tokens=48)
    first = llm.chat(talk, params)
    assert "Paris" in first.text
    assert first.choices[0].finish.reason == "stop"
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
    second = llm.chat(talk, params)
    assert second.prefix.num_tokens >= 32
    assert "Rome" in second.text


@pytest.mark.slow
def test_perplexity_is_that_of_one_long_look(llm: LLM) -> None:
    """Of a text that fits a window: the definition, from the scores of its tokens."""
    tokens = llm.files.tokenizer.encode(LONG[:1200], special=False)
    scores: Sequence[Logprob] = llm.score(tokens)[0]
    whole = measure(llm, tokens, context=len(tokens), stride=64)
    assert whole.num_scored == len(tokens) - 1
    assert whole.value == pytest.approx(np.exp(-np.mean([entry.logprob for entry in scores])), rel=1e-4)
    sliding = measure(llm, tokens, context=192, stride=64)
    assert sliding.num_scored == len(tokens) - 1
    assert whole.value < sliding.value < 1.3 * whole.value, "what is seen less of is foreseen less well"


@pytest.mark.slow
def test_perplexity_of_an_encyclopedia_is_in_the_known_range(llm: LLM) -> None:
    text = model_path(WIKITEXT).read_text()
    tokens = llm.files.tokenizer.encode(text, special=False)[:20_000]
    assert 15.0 < measure(llm, tokens, context=1024, stride=512).value < 25.0


def test_invariant_numbers_do_not_depend_on_company() -> None:
    """Greedy, drawn and scored, in one batch and one by one: the same tokens and the same log probabilities."""
    options = [
        SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1),
        SamplingParams(seed=7, max_tokens=6, ignore_eos=True, logprobs=0),
        SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    ]
    prompts = ALL_PROMPTS[:30]
    each = [options[number % len(options)] for number in range(len(prompts))]
    with LLM(str(model_path(DEFAULT)), max_context=256, invariant=True, prefix_caching=False) as model:
        together = model.generate(prompts, each)
        for number in range(0, len(prompts), 7):
            (alone,) = model.generate(prompts[number], each[number])
            choice, beside = alone.choices[0], together[number].choices[0]
            assert (choice.token_ids, choice.logprobs) == (beside.token_ids, beside.logprobs)


def test_invariance_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match="--invariant"):
        LLM(str(model_path(DEFAULT)), dtype="float32", invariant=True)
