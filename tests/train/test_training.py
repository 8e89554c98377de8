"""Heads learn what can be learned, and say truly how often they are right."""

from collections.abc import Callable, Iterator

import pytest
import torch

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.heads.eagle import EagleShape
from penstock.runtime.execution.heads.target import FloatTarget
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.train.eagle import EagleModule
from penstock.runtime.train.examples import Example, draft_vocabulary, pad, split
from penstock.runtime.train.medusa import MedusaModule
from penstock.runtime.train.record import AnswerRecorder, record
from penstock.runtime.train.training import Schedule, acceptance, head_loss, train
from tests.runtime.driving import BLOCK_SIZE, tiny_model

VOCABULARY, HIDDEN, DEPTH = 24, 32, 3
GREEDY = SamplingParams(temperature=0.0)
NUM_BLOCKS = 8


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(VOCABULARY, seed=9)


def answers(
    model: Decoder, prompts: list[tuple[int, ...]], length: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    found = []
    for prompt in prompts:
        runner = ModelRunner(model, RunnerShape(NUM_BLOCKS, BLOCK_SIZE, 1, NUM_BLOCKS * BLOCK_SIZE))
        arrival = Arrival(GREEDY, 0, len(prompt), (), "")
        chunk = Chunk(0, 0, len(prompt), prompt, tuple(range(NUM_BLOCKS)), True, arrival)
        tokens = [runner.launch(Batch(1, (chunk,))).result().tokens[0][0]]
        for step in range(2, length + 1):
            chunk = Chunk(0, len(prompt) + step - 2, 1, (), (), True, None)
            tokens += runner.launch(Batch(step, (chunk,))).result().tokens[0]
        found.append((prompt, tuple(tokens)))
    return found


@pytest.fixture(scope="module")
def examples(model: Decoder) -> list[Example]:
    """Greedy answers of a tiny model go round in circles: what comes next can be learned."""
    prompts = [(first, second, 5) for first in range(6) for second in range(2)]
    runner = ModelRunner(model, RunnerShape(NUM_BLOCKS, BLOCK_SIZE, 1, NUM_BLOCKS * BLOCK_SIZE))
    return record(runner, answers(model, prompts, 40), NUM_BLOCKS, lambda done, total: None)


def ticking(num_batches: int) -> Callable[[], float]:
    times: Iterator[int] = iter(range(10**6))
    return lambda: next(times) / num_batches


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_head_learns_to_foretell_its_target(model: Decoder, examples: list[Example], kind: str) -> None:
    torch.manual_seed(1)
    target = FloatTarget(model)
    learned, _ = split(examples)
    token_ids = draft_vocabulary(learned, 16, VOCABULARY)
    output = target.output_rows(token_ids)
    shape = EagleShape(HIDDEN, 4, 2, 48)
    module = EagleModule(shape, target) if kind == "eagle" else MedusaModule(HIDDEN, DEPTH)
    before = acceptance(module, learned, output, token_ids, DEPTH)
    schedule = Schedule(DEPTH, 1.0, 5e-3, 0.5 if kind == "eagle" else 0.0)
    found = train(module, learned, output, schedule, ticking(60), lambda share, loss: None)
    after = acceptance(module, learned, output, token_ids, DEPTH)
    assert found.num_batches >= 59
    assert after[0] > before[0] + 0.1
    assert all(0.0 <= rate <= 1.0 for rate in after)


def test_states_recorded_while_answering_are_those_of_reading_the_answers(model: Decoder) -> None:
    prompts = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
    known = answers(model, prompts, 12)
    runner = ModelRunner(model, RunnerShape(3 * NUM_BLOCKS, BLOCK_SIZE, 2, NUM_BLOCKS * BLOCK_SIZE))
    recorder = runner.states = AnswerRecorder()
    step = 0
    for row, (prompt, answer) in ((0, known[0]), (1, known[1]), (0, known[2])):
        blocks = tuple(range(row * NUM_BLOCKS, (row + 1) * NUM_BLOCKS))
        chunk = Chunk(row, 0, len(prompt), prompt, blocks, True, Arrival(GREEDY, 0, len(prompt), (), ""))
        for place in range(len(answer)):
            step += 1
            runner.launch(Batch(step, (chunk,))).result()
            chunk = Chunk(row, len(prompt) + place, 1, (), (), True, None)
    found = recorder.examples(known)
    reader = ModelRunner(model, RunnerShape(NUM_BLOCKS, BLOCK_SIZE, 1, NUM_BLOCKS * BLOCK_SIZE))
    read = record(reader, known, NUM_BLOCKS, lambda done, total: None)
    for ours, theirs in zip(found, read, strict=True):
        assert ours.tokens.tolist() == theirs.tokens[:-1].tolist()
        assert torch.allclose(ours.states.float(), theirs.states[:-1].float(), atol=2e-3)


def test_padding_changes_no_loss_and_no_acceptance(model: Decoder, examples: list[Example]) -> None:
    torch.manual_seed(4)
    target = FloatTarget(model)
    module = EagleModule(EagleShape(HIDDEN, 4, 2, 48), target)
    token_ids = torch.arange(VOCABULARY)
    output = target.output_rows(token_ids)
    short = [Example(each.tokens[:15], each.states[:15], 3) for each in examples[:3]]
    rates = [acceptance(module, [each], output, token_ids, DEPTH) for each in short]
    mixed = acceptance(module, [*short, examples[4]], output, token_ids, DEPTH)
    alone = acceptance(module, [examples[4]], output, token_ids, DEPTH)
    assert all(0 <= rate <= 1 for rate in [*mixed, *alone, *rates[0]])
    generator = torch.Generator().manual_seed(0)
    one = head_loss(module, pad(short[:1]), output, 1, 0.5, generator)
    padded = pad([short[0], Example(examples[4].tokens, examples[4].states, len(examples[4].tokens))])
    assert torch.allclose(one, head_loss(module, padded, output, 1, 0.5, generator), atol=1e-4)
