"""Two hundred prompts a drafter: the answers of plain decoding, also when preempted, under a grammar, or three at a time.

Run by `make test-slow`; PENSTOCK_PROMPTS asks for fewer, PENSTOCK_EAGLE names an EAGLE head of the default model to try too."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count

import pytest

from penstock import LLM, SamplingParams
from penstock.config import configure
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.engine.engine import Engine
from tests.real import DEFAULT, model_path

pytestmark = pytest.mark.slow

NUM_PROMPTS = int(os.environ.get("PENSTOCK_PROMPTS", "200"))
ORDERS = (
    "Tell me about {}.",
    "Write a short list of facts about {}.",
    "Say in one sentence what {} is.",
    "Repeat the words '{0}, {0} and {0}' twice.",
    "Write a Python function about {}.",
    "Write a poem about {}.",
    "Translate '{}' to French.",
    "What rhymes with {}?",
)
SUBJECTS = (
    "a river", "the moon", "cheese", "a steam engine", "winter", "a violin", "gravity", "a library", "bread", "the sea",
    "a spider", "glass", "a dam", "music", "an apple", "the heart", "a mountain", "salt", "a clock", "sleep", "a bridge",
    "paper", "a whale", "time", "the colour blue",
)  # fmt: skip
PROMPTS = [
    f"<|im_start|>user\n{ORDERS[number % len(ORDERS)].format(SUBJECTS[number // len(ORDERS) % len(SUBJECTS)])}<|im_end|>\n"
    "<|im_start|>assistant\n"
    for number in range(NUM_PROMPTS)
]
SITUATIONS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=24),
    "preempted": SamplingParams(temperature=0.0, max_tokens=24),
    "grammar": SamplingParams(temperature=0.0, max_tokens=24, regex="[A-Z][a-z]+( [a-z]+){3,9}\\."),
    "three": SamplingParams(temperature=0.8, seed=4, max_tokens=16, n=3),
}
DRAFTERS = {
    "ngram": {"speculate": "ngram", "draft_tokens": 3},
    "suffix": {"speculate": "suffix", "draft_tokens": 3},
    "auto": {"speculate": "auto"},
    "model": {"speculate": "model", "draft_model": str(model_path(DEFAULT)), "draft_tokens": 3},
}
if head := os.environ.get("PENSTOCK_EAGLE"):
    DRAFTERS["eagle"] = {"speculate": f"eagle:{head}", "draft_tokens": 2}
Tokens = list[list[tuple[int, ...]]]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(model_path(DEFAULT)), max_context=256, max_sequences=16, speculate="off", invariant=True) as model:
        yield model


def tokens(llm: LLM, situation: str) -> Tokens:
    found = llm.generate(PROMPTS, SITUATIONS[situation])
    return [[tuple(choice.token_ids) for choice in completion.choices] for completion in found]


@cache
def plain(llm: LLM, situation: str) -> Tokens:
    return tokens(llm, situation)


def preempt_often(engine: Engine) -> None:
    """Half of those who run lose their blocks before every fifth step."""
    step, roster, numbers = engine.step, engine.scheduler.roster, count()

    def disturbed() -> tuple[Delta, ...]:
        if next(numbers) % 5 == 4:
            for sequence in list(roster.running)[::2]:
                roster.preempt(sequence)
        return step()

    engine.step = disturbed  # type: ignore[method-assign]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_those_of_plain_decoding(llm: LLM, drafter: str, situation: str) -> None:
    guessing = LLM.over(llm.loaded, configure(llm.config, **DRAFTERS[drafter]))
    if situation == "preempted":
        preempt_often(guessing.engine)
    assert tokens(guessing, situation) == plain(llm, "greedy" if situation == "preempted" else situation)
    proposals = guessing.engine.proposer.proposals
    assert proposals is not None
    assert drafter == "auto" or proposals.num_accepted > 0


def test_predictions_change_no_answer(llm: LLM) -> None:
    """Each is the answer to another prompt, the right one for every other prompt."""
    answers = plain(llm, "greedy")
    guessing = LLM.over(llm.loaded, configure(llm.config, speculate="prediction", draft_tokens=4))
    encode = llm.files.tokenizer.encode
    stops = tuple(llm.files.tokenizer.eos_ids)
    heard: dict[int, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        params = replace(SITUATIONS["greedy"], stop_token_ids=stops)
        guess = answers[number if number % 2 else number - 1][0]
        guessing.engine.submit(
            Request(request_id=number, prompt=tuple(encode(prompt, special=True)), params=params, prediction=guess)
        )
    while guessing.engine.has_work:
        for delta in guessing.engine.step():
            heard.setdefault(delta.request_id, []).extend(delta.token_ids)
    for number, answer in enumerate(answers):
        assert tuple(heard[number])[: len(answer[0])] == answer[0]
    assert guessing.engine.proposer.proposals is not None
    assert guessing.engine.proposer.proposals.num_accepted > len(PROMPTS)
