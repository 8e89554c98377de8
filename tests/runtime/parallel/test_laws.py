"""What holds for one rank holds for several: batches, chunks, forks, preemption and draws, whoever computes them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.parallel.runner import LeadingRunner
from penstock.runtime.models.ranks import Ranks
from tests.engine.answers import LIMITS, Clock, drain, make_request
from tests.engine.masked import VOCAB_SIZE, grammar_state
from tests.models.tiny import DECODERS, llama
from tests.runtime.driving import BLOCK_SIZE, Driver, Text, prompts
from tests.runtime.parallel.test_split import whole_model
from tests.runtime.parallel.threads import lead

SHAPE = RunnerShape(128, BLOCK_SIZE, 16, 160)
FORMS: list[dict[str, Any]] = [
    {},
    {"choice": ("a word that is long enough", "another that is")},
    {"regex": "[a-c]{2,9}!"},
    {"temperature": 0.0},
    {"schema": {"enum": [1, "two"]}},
]
LAYOUTS = [Ranks(2), Ranks(pipeline=2), Ranks(2, 2)]
DRAWN = SamplingParams(temperature=0.9, seed=11, top_p=0.9, frequency_penalty=0.3, logprobs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    llama(tie_word_embeddings=True).save(folder)
    return folder


def driver(runner: LeadingRunner | ModelRunner) -> Driver:
    driver = Driver.__new__(Driver)
    driver.start(runner, SHAPE.num_blocks, SHAPE.max_sequences)
    return driver


def texts() -> list[Text]:
    greedy, drawn, long, chunked = prompts(5, 9, 61, 40)
    return [
        Text(greedy),
        Text(drawn, DRAWN, choice=1),
        Text(long, SamplingParams(temperature=0.0, prompt_logprobs=1), chunk_size=16),
        Text(chunked, chunk_size=7),
    ]


def computed(driver: Driver, every: Sequence[Text]) -> list[tuple[object, ...]]:
    driver.finish(every, 6)
    driver.leave(every[0])  # preempted: its tokens are computed again
    answers = driver.finish(every, 12)
    return [
        (answer, [each.token_id for each in text.logprobs], [each.token_id for each in text.prompt_logprobs])
        for answer, text in zip(answers, every)
    ]


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_ranks_together_give_what_one_gives(ranks: Ranks, folder: Path) -> None:
    alone = computed(driver(ModelRunner(whole_model(folder), SHAPE)), texts())
    together = lead(ranks, folder, SHAPE, lambda runner: computed(driver(runner), texts()))
    assert together == alone


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_likeliest_tokens_are_those_of_one(ranks: Ranks, folder: Path) -> None:
    """Where nothing else is asked for, ranks compare their best instead of sharing scores."""

    def answers(runner: LeadingRunner | ModelRunner) -> list[list[int]]:
        return driver(runner).finish([Text(prompt) for prompt in prompts(5, 9, 30)], 12)

    assert lead(ranks, folder, SHAPE, answers) == answers(ModelRunner(whole_model(folder), SHAPE))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "gpt-oss"])
def test_two_hundred_prompts_over_experts(name: str, tmp_path: Path) -> None:
    DECODERS[name].save(tmp_path)
    every = prompts(*(3 + number % 30 for number in range(200)))

    def answers(runner: LeadingRunner | ModelRunner) -> list[list[int]]:
        one = driver(runner)
        found = []
        for begin in range(0, len(every), 10):
            texts = [Text(prompt) for prompt in every[begin : begin + 10]]
            found += one.finish(texts, 8)
            for text in texts:
                one.leave(text)
        return found

    assert lead(Ranks(expert=2), tmp_path, SHAPE, answers) == answers(ModelRunner(whole_model(tmp_path), SHAPE))


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_answers_are_held_to_their_grammars_as_by_one(ranks: Ranks, tmp_path: Path) -> None:
    """Among answers that are held to none, with forced tokens as drafts, and several steps under way where that pays."""
    llama(tie_word_embeddings=True, vocab_size=VOCAB_SIZE).save(tmp_path)

    def answers(runner: LeadingRunner | ModelRunner) -> dict[tuple[int, int], list[int]]:
        depth = runner.depth if isinstance(runner, LeadingRunner) else 1
        limits = LIMITS._replace(
            num_blocks=SHAPE.num_blocks,
            block_size=SHAPE.block_size,
            max_context=SHAPE.max_context,
            max_sequences=SHAPE.max_sequences,
        )
        engine = Engine(Scheduler(limits), runner, Clock(), depth=depth, grammar_state=grammar_state())
        for number, form in enumerate(FORMS):
            engine.submit(make_request(number, (5, 6, number + 1), max_tokens=40, seed=number, n=2, **form))
        return {key: answer.tokens for key, answer in drain(engine).items()}

    alone = answers(ModelRunner(whole_model(tmp_path), SHAPE))
    assert lead(ranks, tmp_path, SHAPE, answers) == alone
    assert bytes(alone[1, 0]).decode() in FORMS[1]["choice"]
    assert re.fullmatch(FORMS[2]["regex"], bytes(alone[2, 1]).decode())


@pytest.mark.parametrize("ranks", LAYOUTS, ids=str)
def test_a_token_outside_the_vocabulary_fails_its_own_sequence(ranks: Ranks, folder: Path) -> None:
    def body(runner: LeadingRunner) -> list[str | None]:
        every = [Text((1, 2, 3)), Text((1, 2_000_000)), Text((4, 5))]
        driver(runner).finish(every, 3)
        return [text.failure for text in every]

    first, second, third = lead(ranks, folder, SHAPE, body)
    assert (first, third) == (None, None)
    assert "outside the vocabulary" in (second or "")
