"""One tenant's flood beside another's short questions, in virtual time: who asks little waits little.

Steps take ten milliseconds and one and a half for each token, as a small model on two cores does. Times are the engine's own,
so the figures are the same on every machine.
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import pytest

from penstock.errors import StepInterruptedError
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.limits import Limits, StepSize
from penstock.runtime.core.queue.order import ORDERS, Lanes
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import Runner, Ticket
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.oracle import OracleRunner
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.sizing import MIN_SHARED_TOKENS, SHARED_CPU_STEP_S
from tests.engine.answers import LIMITS, VOCAB_SIZE, Answers, assert_right, make_request

FIXED_S, TOKEN_S = 0.01, 0.0015
NUM_FLOOD = 300
ROOMY = LIMITS._replace(
    max_batch_tokens=512,
    shared_tokens=MIN_SHARED_TOKENS,
    max_sequences=256,
    num_blocks=16_384,
    block_size=16,
    max_context=2048,
)
Event = tuple[float, int, Request | int]
"""A request that comes, or the number of one that is left."""


class BusyRunner:
    """Another, that takes its time on a clock of its own; requests come while it computes, and may interrupt it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.now = 0.0
        self.num_interrupted = 0
        self.yields = False
        self.engine: Engine | None = None
        self.events: list[Event] = []
        self._is_interrupted = False

    def interrupt(self, *, is_on: bool) -> None:
        self._is_interrupted = is_on

    def hand_over(self, until_s: float) -> bool:
        """What happens until then; False if it interrupts the step under way."""
        while self.events and self.events[0][0] <= until_s:
            time_s, _, what = heappop(self.events)
            self.now = max(self.now, time_s)
            if isinstance(what, Request):
                self.engine.submit(what)
            else:
                self.engine.cancel(what)
            if self.yields and self._is_interrupted:
                return False
        return True

    @staticmethod
    def step_s(num_tokens: int) -> float:
        return FIXED_S + TOKEN_S * num_tokens

    def launch(self, batch: Batch, masks: object = None) -> Ticket:
        end_s = self.now + self.step_s(batch.num_tokens)
        if not self.hand_over(end_s):
            self.num_interrupted += 1
            raise StepInterruptedError("a request came")
        self.now = end_s
        return self._runner.launch(batch)


@dataclass
class Served:
    runner: BusyRunner
    requests: list[Request] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)
    first_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)

    def waits_s(self, tenant: str) -> list[float]:
        """From arrival to the first token, in ascending order."""
        own = [request for request in self.requests if request.tenant == tenant]
        return sorted(self.first_s[request.request_id] - request.arrival_s for request in own)


def serve(
    requests: list[Request],
    left: dict[int, float] | None = None,
    *,
    limits: Limits = ROOMY,
    runner: Runner | None = None,
) -> Served:
    """To the end; `left` says when clients leave."""
    runner = BusyRunner(runner or ScriptedRunner(lambda row, position: 1))
    size = limits.max_batch_tokens
    shared = StepSize(step_s=SHARED_CPU_STEP_S, least=limits.shared_tokens, most=size, counts_decodes=True)
    step_size = StepSize(step_s=1.0, least=size, most=size, shared=shared)
    scheduler = Scheduler(limits, Lanes(ORDERS["fair"]()))
    engine = runner.engine = Engine(scheduler, runner, lambda: runner.now, step_size=step_size)
    served = Served(runner, requests)
    for request in requests:
        heappush(runner.events, (request.arrival_s, request.request_id, request))
    for number, time_s in (left or {}).items():
        heappush(runner.events, (time_s, number, number))
    while runner.events or engine.has_work:
        runner.hand_over(runner.now if engine.has_work else runner.events[0][0])
        deltas = engine.step()
        served.answers.hear(deltas)
        for delta in deltas:
            served.first_s.setdefault(delta.request_id, runner.now)
            served.end_s[delta.request_id] = runner.now
    engine.check()
    return served


def short_questions(first: int, count: int, *, from_s: float = 5.0, every_s: float = 0.37) -> list[Request]:
    return [
        make_request(
            first + number,
            (number % 60, *range(23)),
            max_tokens=4,
            tenant="polite",
            arrival_s=from_s + every_s * number,
        )
        for number in range(count)
    ]


def flood(num_prompt: int, max_tokens: int, count: int = NUM_FLOOD) -> list[Request]:
    return [
        make_request(number, (number % 60, number // 60, *[7] * num_prompt), max_tokens=max_tokens, tenant="flood")
        for number in range(count)
    ]


def p95(values: list[float]) -> float:
    return values[int(0.95 * len(values))]


ALONE = short_questions(1000, 40)


@pytest.mark.parametrize("kind", [(8, 100), (300, 8)], ids=["long answers", "long prompts"])
def test_beside_three_hundred_streams_of_another_a_short_question_waits_no_more_than_thrice_as_long(kind):
    alone = serve(ALONE).waits_s("polite")
    served = serve([*flood(*kind), *ALONE])
    assert p95(served.waits_s("polite")) <= 3 * p95(alone)
    assert max(served.end_s[request.request_id] for request in flood(*kind)) > ALONE[-1].arrival_s, "it was a flood"


def test_a_prompt_that_the_cache_has_most_of_takes_one_step_beside_a_flood():
    """Its share is what is left to compute, not what it is long."""
    template = tuple(range(32))
    cached = [replace(one, prompt=(*template, *one.prompt[:20])) for one in ALONE]
    served = serve([*flood(8, 300), *cached])
    first = served.runner.step_s(MIN_SHARED_TOKENS)
    assert served.waits_s("polite")[len(cached) // 2] <= 2 * first, "what is left of a step, and one"


def test_who_asks_now_and_then_finds_no_long_step_to_wait_for():
    """Tenants are absent for longer than steps stay short, so each question meets a step that is the flood's alone; it is
    given up, and only that one."""
    rare = short_questions(1000, 6, every_s=15.0)
    served = serve([*flood(8, 300), *rare])
    assert served.waits_s("polite")[-1] <= 3 * serve(rare).waits_s("polite")[-1]
    assert 1 <= served.runner.num_interrupted <= len(rare)


def test_answers_nobody_waits_for_cost_the_other_tenant_nothing():
    alone = serve(ALONE).waits_s("polite")
    begun = [
        make_request(
            number, (number % 60, number // 60, *[7] * 300), max_tokens=200, tenant="flood", arrival_s=number / 60
        )
        for number in range(900)
    ]
    served = serve([*begun, *ALONE], {request.request_id: request.arrival_s + 0.02 for request in begun})
    assert p95(served.waits_s("polite")) <= 3 * p95(alone)


def test_a_flood_is_slowed_by_no_more_than_its_share():
    """Another's questions take little, so it keeps most of what it has alone."""
    requests = flood(8, 100)
    ends = [serve(all_of).end_s for all_of in (requests, [*requests, *ALONE])]
    assert max(ends[1][one.request_id] for one in requests) <= 1.5 * max(ends[0].values())


def test_whoever_pauses_or_is_interrupted_gets_the_answer_it_would_get_alone():
    limits = ROOMY._replace(max_batch_tokens=64, shared_tokens=16, max_sequences=24, num_blocks=256, block_size=4)
    runner = OracleRunner(limits.num_blocks, limits.block_size, vocab_size=VOCAB_SIZE)
    rare = short_questions(1000, 4, from_s=0.5, every_s=11.0)
    served = serve([*flood(20, 60, 120), *rare], limits=limits, runner=runner)
    assert served.runner.num_interrupted
    assert_right(served.requests, served.answers, limits)


class TurningRunner(BusyRunner):
    """The loop turns just when a request that has been handed over interrupts; steps are interrupted while that is on."""

    def interrupt(self, *, is_on: bool) -> None:
        if is_on:
            self.engine.step()
        self._is_interrupted = is_on

    def launch(self, batch: Batch, masks: object = None) -> Ticket:
        if self.yields and self._is_interrupted:
            self.num_interrupted += 1
            raise StepInterruptedError("a request came")
        return self._runner.launch(batch)


def test_a_loop_that_turns_while_a_request_interrupts_goes_on():
    runner = TurningRunner(ScriptedRunner(lambda row, position: 1))
    engine = runner.engine = Engine(Scheduler(ROOMY, Lanes(ORDERS["fair"]())), runner, lambda: 0.0)
    engine.submit(make_request(1, range(20), max_tokens=4, tenant="only"))
    finished = [delta for _ in range(20) for delta in engine.step() if delta.finish is not None]
    assert len(finished) == 1
    assert runner.num_interrupted <= 1
