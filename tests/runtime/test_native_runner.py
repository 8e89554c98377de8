"""The short way of native steps gives what the long way gives, whatever the scheduler decides and whatever fails."""

import dataclasses
import random
from collections.abc import Mapping, Sequence

import pytest
import torch

from penstock.errors import EngineError
from penstock.runtime.core.batch import Arrival, Batch, Chunk, Delta, FinishReason
from penstock.runtime.core.kinds.groups import PLAIN
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.order import Lanes, Queue, by_arrival
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import Guess, View
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.loop.listeners import StepListener
from penstock.runtime.execution.eager.forward import States
from penstock.runtime.execution.eager.runner import ModelRunner, StepRunner
from penstock.runtime.execution.eager.sampler import NOT_FINITE
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.runner import NativeRunner
from tests.runtime.test_engine import serve
from tests.runtime.test_kinds import groups_of
from tests.runtime.test_native import BLOCK_SIZE, MAX_CONTEXT, SPECS, twins

MAX_SEQUENCES = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
PARAMS = [
    GREEDY,
    GREEDY,
    SamplingParams(temperature=0.0, max_tokens=30, stop_token_ids=(3, 5, 7, 11)),
    SamplingParams(seed=1, max_tokens=17),
    SamplingParams(seed=3, repetition_penalty=1.4, n=2, max_tokens=25),
    SamplingParams(temperature=0.0, prompt_logprobs=1, logprobs=1, max_tokens=12),
    SamplingParams(temperature=0.0, prompt_logprobs=1, max_tokens=12),
]


@pytest.fixture(scope="module", params=["plain", "two rotations"])
def decoder(request: pytest.FixtureRequest) -> NativeDecoder:
    return twins(SPECS[request.param])[1]


def requests(count: int, params: list[SamplingParams]) -> list[Request]:
    source = random.Random(count)
    stems = [[source.randrange(203) for _ in range(40)] for _ in range(2)]
    prompts = [
        source.choice(stems)[: source.randrange(41)] + [source.randrange(203) for _ in range(source.randrange(1, 40))]
        for _ in range(count)
    ]
    return [
        Request(request_id=number, prompt=tuple(prompt), params=source.choice(params))
        for number, prompt in enumerate(prompts)
    ]


def make_engine(
    kind: type[StepRunner],
    decoder: NativeDecoder,
    num_blocks: int,
    max_batch_tokens: int,
    *,
    is_laned: bool = False,
    frees: bool = False,
) -> Engine:
    groups = groups_of(decoder.spec) if frees else PLAIN
    limits = Limits(num_blocks, BLOCK_SIZE, MAX_CONTEXT, max_batch_tokens, MAX_SEQUENCES, 100, 10_000, groups=groups)
    order = Lanes(Queue(by_arrival)) if is_laned else None
    shape = RunnerShape(num_blocks, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT, frees)
    return Engine(Scheduler(limits, order), kind(decoder, shape), lambda: 0.0)


@pytest.mark.parametrize("params", [[GREEDY], PARAMS])
@pytest.mark.parametrize(("num_blocks", "max_batch_tokens"), [(100, 256), (12, 24)])
def test_the_short_way_gives_the_long_ways_answers(
    decoder: NativeDecoder, params: list[SamplingParams], num_blocks: int, max_batch_tokens: int
) -> None:
    asked = requests(16, params)
    short = make_engine(NativeRunner, decoder, num_blocks, max_batch_tokens)
    answers = serve(short, asked)
    short.scheduler.check()
    assert (short.scheduler.num_preemptions > 0) == (num_blocks == 12)
    assert answers == serve(make_engine(ModelRunner, decoder, num_blocks, max_batch_tokens), asked)


@pytest.mark.parametrize("num_own", [1, 20])
def test_those_who_begin_alike_and_come_together_are_as_apart(decoder: NativeDecoder, num_own: int) -> None:
    """They read in one step what the first of them writes there. Keys and values laid down are the same in any company."""
    source = random.Random(num_own)
    stem = [source.randrange(203) for _ in range(64)]
    asked = [
        Request(request_id=number, prompt=(*stem, *(source.randrange(203) for _ in range(num_own))), params=GREEDY)
        for number in range(MAX_SEQUENCES)
    ]
    engine = make_engine(NativeRunner, decoder, 100, 512)
    answers = serve(engine, asked, together=True)
    assert [answers[number, 0][0].prefix.num_tokens for number in range(MAX_SEQUENCES)] == [0] + [64] * 5
    for request in asked:
        apart = serve(make_engine(NativeRunner, decoder, 100, 512), [request])
        reported = [
            [token for delta in each for token in delta.token_ids]
            for each in (answers[request.request_id, 0], apart[request.request_id, 0])
        ]
        assert reported[0] == reported[1]


WINDOWS = {
    "beside full": (7, None, 7, 40),
    "all alike": (20, 20),
    "of two lengths": (9, 33, 9),
}


def windowed(name: str) -> NativeDecoder:
    layer = SPECS["plain"].layers[0]
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, window=window))
        for window in WINDOWS[name]
    )
    return twins(dataclasses.replace(SPECS["plain"], layers=layers))[1]


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("params", "num_blocks"), [([GREEDY], 400), (PARAMS, 60), ([GREEDY], 60)])
def test_windows_that_free_change_no_answer(name: str, params: list[SamplingParams], num_blocks: int) -> None:
    """The short way and the long way, against an engine that keeps everything; with few blocks sequences are preempted."""
    decoder = windowed(name)
    asked = requests(16, params)
    expected = serve(make_engine(NativeRunner, decoder, 200, 64), asked)
    engine = make_engine(NativeRunner, decoder, num_blocks, 64, frees=True)
    assert tokens_of(serve(engine, asked)) == tokens_of(expected)
    engine.scheduler.check()
    assert tokens_of(serve(make_engine(ModelRunner, decoder, num_blocks, 64, frees=True), asked)) == tokens_of(expected)


def test_what_a_ruined_sequence_wrote_is_wiped() -> None:
    """Tiles read a few keys before a window, in blocks that it may have left, and zero times infinity is no number."""
    decoder = windowed("all alike")
    engine = make_engine(NativeRunner, decoder, 60, 16, frees=True)
    for request in requests(4, [GREEDY]):
        engine.submit(request)
    engine.step()
    cache = engine.runner._cache  # type: ignore[attr-defined]
    spoiled = next(iter(engine.scheduler.roster.running)).blocks[0]
    for page in cache.pages:
        page.values[spoiled] = torch.nan
    ends = []
    while engine.has_work:
        ends.extend(delta.finish.reason for delta in engine.step() if delta.finish)
        for page in cache.pages:  # what was planted is not what the sequence wrote
            page.values[spoiled] = page.values[spoiled].nan_to_num()
    assert FinishReason.ERROR in ends
    assert all(bool(part.isfinite().all()) for page in cache.pages for part in page)


def test_most_steps_take_it(decoder: NativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the law above would say nothing: the long way is barred once prompts are behind."""
    engine = make_engine(NativeRunner, decoder, 100, 512)
    for request in requests(MAX_SEQUENCES, [GREEDY]):
        engine.submit(request)
    engine.step()
    monkeypatch.setattr(StepRunner, "launch", None)
    while engine.has_work:
        engine.step()


def test_torch_has_no_part_in_prompts(decoder: NativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the likeliest token is all that is asked for: its code, megabytes of it, is not even touched."""
    monkeypatch.setattr(States, "draw", None)
    answers = serve(make_engine(NativeRunner, decoder, 100, 64), requests(12, [GREEDY]))
    assert all(reported[-1].finish.reason is not FinishReason.ERROR for reported in answers.values())


def test_a_step_that_failed_is_computed_in_parts(decoder: NativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth step finds no memory; its parts are launched under its number, blocks it brought included."""
    asked = requests(12, [GREEDY])
    expected = serve(make_engine(ModelRunner, decoder, 40, 64), asked)
    compute, num_calls = decoder.compute, 0

    def fail_sometimes(*arguments: object) -> bool:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 4 == 0:
            raise MemoryError("planted")
        return compute(*arguments)  # type: ignore[arg-type]

    engine = make_engine(NativeRunner, decoder, 40, 64)
    monkeypatch.setattr(decoder, "compute", fail_sometimes)
    assert serve(engine, asked) == expected


@pytest.mark.parametrize("max_batch_tokens", [16, 512])
def test_numbers_that_are_not_finite_end_their_own_sequence(decoder: NativeDecoder, max_batch_tokens: int) -> None:
    """In the midst of its prompt, or beyond it."""
    asked = requests(4, [GREEDY])
    expected = serve(make_engine(NativeRunner, decoder, 100, 256), asked)
    runner = NativeRunner(decoder, RunnerShape(100, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    limits = Limits(100, BLOCK_SIZE, MAX_CONTEXT, max_batch_tokens, MAX_SEQUENCES, 100, 10_000, prefix_caching=False)
    engine = Engine(Scheduler(limits), runner, lambda: 0.0)
    for request in asked:
        engine.submit(request)
    heard = list(engine.step())
    spoiled = next(iter(engine.scheduler.roster.running))
    assert spoiled.is_behind == (max_batch_tokens == 16)
    for layer in runner._cache.layers:
        layer.values[spoiled.blocks[0]] = torch.nan
    while engine.has_work:
        heard.extend(engine.step())
    for request in asked:
        ends = [delta for delta in heard if delta.request_id == request.request_id]
        if request is spoiled.request:
            assert ends[-1].finish is not None
            assert (ends[-1].finish.reason, ends[-1].finish.message) == (FinishReason.ERROR, NOT_FINITE)
        else:
            tokens = [delta.token_ids for delta in expected[request.request_id, 0]]
            assert [delta.token_ids for delta in ends] == tokens


class ToldDrafter:
    """Knows the answers, and gets every fifth token wrong; says more of some sequences than of others, and of one nothing."""

    name = "told"

    def __init__(self, answers: dict[tuple[int, int], list[int]]) -> None:
        self._answers = answers

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [self._guess(view, most) for view in views]

    def _guess(self, view: View, most: int) -> Guess:
        place = len(view.tokens) - view.num_prompt
        right = self._answers[view.key][place : place + min(most, view.key[0] % 5)]
        return Guess(tuple((token + ((place + i) % 5 == 4)) % 203 for i, token in enumerate(right)), self.name)

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        pass


def tokens_of(answers: Mapping[tuple[int, int], Sequence[Delta]]) -> dict[tuple[int, int], list[int]]:
    return {key: [token for delta in each for token in delta.token_ids] for key, each in answers.items()}


@pytest.mark.parametrize("params", [[GREEDY], PARAMS[:5]])
@pytest.mark.parametrize("num_blocks", [100, 14])
def test_drafts_change_no_answer(
    decoder: NativeDecoder, params: list[SamplingParams], num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of any width side by side, also where some are preempted; likeliest tokens are judged without torch."""
    asked = requests(16, params)
    plain = tokens_of(serve(make_engine(ModelRunner, decoder, num_blocks, 64), asked))
    engine = make_engine(NativeRunner, decoder, num_blocks, 64)
    engine.proposer.proposals = Proposals(engine.scheduler, Speculator([ToldDrafter(plain)], length=4))
    if params == [GREEDY]:
        monkeypatch.setattr(States, "draw", None)
    assert tokens_of(serve(engine, asked)) == plain
    engine.scheduler.check()
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 14)
    assert 0 < engine.proposer.proposals.num_accepted < engine.proposer.proposals.num_checked


def test_steps_with_drafts_take_the_short_way(decoder: NativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(MAX_SEQUENCES, [GREEDY])
    plain = tokens_of(serve(make_engine(NativeRunner, decoder, 100, 512), asked))
    engine = make_engine(NativeRunner, decoder, 100, 512)
    engine.proposer.proposals = Proposals(engine.scheduler, Speculator([ToldDrafter(plain)], length=4))
    for request in asked:
        engine.submit(request)
    heard = list(engine.step())
    monkeypatch.setattr(StepRunner, "launch", None)
    while engine.has_work:
        heard += engine.step()
    for key, tokens in plain.items():
        assert [token for delta in heard if delta.request_id == key[0] for token in delta.token_ids] == tokens


@pytest.mark.parametrize("params", [[GREEDY], PARAMS])
@pytest.mark.parametrize(("num_blocks", "max_batch_tokens"), [(100, 256), (12, 24)])
def test_batch_requests_that_are_interrupted_lose_nothing(
    decoder: NativeDecoder, params: list[SamplingParams], num_blocks: int, max_batch_tokens: int
) -> None:
    asked = [dataclasses.replace(one, is_batch=True) for one in requests(16, params)]
    calm = make_engine(NativeRunner, decoder, num_blocks, max_batch_tokens, is_laned=True)
    engine = make_engine(NativeRunner, decoder, num_blocks, max_batch_tokens, is_laned=True)
    source = random.Random(1)
    num_abandoned = 0

    class Interrupting(StepListener):
        def scheduled(self, batch: Batch) -> None:
            engine.runner.interrupt(is_on=source.random() < 0.4)

    def abandon(batch: Batch) -> None:
        nonlocal num_abandoned
        num_abandoned += 1
        Scheduler.abandon(engine.scheduler, batch)

    engine.listeners.add(Interrupting())
    engine.scheduler.abandon = abandon
    assert tokens_of(serve(engine, asked)) == tokens_of(serve(calm, asked))
    assert num_abandoned > 10
    engine.scheduler.check()


def test_steps_of_interactive_requests_are_not_interrupted(decoder: NativeDecoder) -> None:
    asked = requests(8, PARAMS)
    engine = make_engine(NativeRunner, decoder, 100, 256, is_laned=True)

    class Interrupting(StepListener):
        def scheduled(self, batch: Batch) -> None:
            engine.runner.interrupt(is_on=True)

    engine.listeners.add(Interrupting())
    assert tokens_of(serve(engine, asked)) == tokens_of(serve(make_engine(NativeRunner, decoder, 100, 256), asked))


def test_a_row_is_not_computed_beyond_its_blocks(decoder: NativeDecoder) -> None:
    runner = NativeRunner(decoder, RunnerShape(100, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    prompt = tuple(range(BLOCK_SIZE))
    runner.launch(Batch(1, (Chunk(2, 0, 16, prompt, (7,), True, Arrival(GREEDY, 0, 16, (), "")),)))
    with pytest.raises(EngineError, match="beyond its blocks"):
        runner.launch(Batch(2, (Chunk(2, 16, 1, (), (), True, None),)))
    runner.launch(Batch(3, (Chunk(2, 16, 1, (), (8,), True, None),)))
