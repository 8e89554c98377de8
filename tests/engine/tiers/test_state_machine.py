"""Any mix of loads, copies, delays, failures, cancels and preemptions keeps the books and the answers right.

Copies are done at the worst moment: what leaves is read, and what arrives is written, when the copy ends; until then garbage
lies where something arrives. A block taken too soon, or read too soon, so gives a wrong answer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis.stateful import initialize, precondition, rule

from penstock.errors import CapacityError, RequestError
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import CopyingRunner
from penstock.runtime.core.scheduler import CANCELLED
from penstock.runtime.engine.oracle import OracleRunner
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.news import TierNews
from penstock.runtime.engine.tiers.record import format_digest
from penstock.runtime.engine.tiers.tiers import KVTiers
from tests.core.test_state_machine import MAX_AHEAD, NUMBERS, Digits, Serving, run
from tests.engine.answers import VOCAB_SIZE, make_request

FORMAT = format_digest("oracle")


class Later(Executor):
    """Work waits until it is asked for."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self.tasks.append((fn, args))
        return Future()

    def run(self, place: int = 0) -> None:
        fn, args = self.tasks.pop(place % len(self.tasks))
        fn(*args)

    def shutdown(self, *_: Any, **__: Any) -> None:
        while self.tasks:
            self.run()


class OracleCopy:
    seconds = None

    def __init__(self, work: Callable[[], list[bytes]]) -> None:
        self._work = work
        self.is_failing = False

    def wait(self) -> list[bytes]:
        if self.is_failing:
            raise OSError("planted")
        return self._work()


class LoggingOracle(OracleRunner):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_launched = 0
        self.written: dict[int, int] = {}
        """Steps launched when each block was last written by a copy."""

    def launch(self, *args: Any) -> Any:
        self.num_launched += 1
        return super().launch(*args)

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> None:
        super().write_blocks(blocks, contents)
        self.written.update(dict.fromkeys(blocks, self.num_launched))


class SlowCopies(LoggingOracle):
    """Reads when a copy ends; a fenced one reads at once, as the steps after it may write there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.copies: list[OracleCopy] = []

    def pin(self, num_bytes: int) -> None: ...

    def begin_read(self, blocks: Sequence[int], *, is_fenced: bool) -> OracleCopy:
        held = self.read_blocks(blocks) if is_fenced else []
        return self._begun(lambda: held or self.read_blocks(blocks))

    def begin_write(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> OracleCopy:
        self.write_blocks(blocks, [bytes(len(content)) for content in contents])
        return self._begun(lambda: self.write_blocks(blocks, contents) or [])

    def _begun(self, work: Callable[[], list[bytes]]) -> OracleCopy:
        self.copies.append(OracleCopy(work))
        return self.copies[-1]


class ServingTiers(Serving):
    """Requests come through the tiers, as they do in an engine."""

    @initialize(number=NUMBERS)
    def begin(self, number):
        super().begin(number)
        digits = Digits(number)
        make = digits.pick(SlowCopies, SlowCopies, LoggingOracle)
        self.runner = make(
            self.limits.num_blocks, self.limits.block_size, vocab_size=VOCAB_SIZE, num_drafts=digits.pick(0, 2)
        )
        self.later = Later()
        self.news: list[TierNews] = []
        self.tiers = KVTiers(
            self.scheduler,
            self.runner,
            FORMAT,
            self.later,
            host=HostTier(digits.pick(10**6, 2000, 300)),
            disk=None,
            keeps_all=digits.pick(True, False),
            canary_every=digits.pick(1, 2),
        )
        self.tiers.open(self.news.append)
        self.waiting: dict[int, Request] = {}
        for number in (0, 1, 2, 3, 0, 1):  # what is asked for later was on the device once
            self.add_one(self.make_request(Digits(number)))
            self.drain()

    def make_request(self, digits: Digits) -> Request:
        """Few beginnings, each longer than the half of a small pool."""
        stem = tuple(range(3 * digits.pick(0, 1, 2, 3), 60))[: digits.pick(16, 20, 9)]
        return make_request(
            next(self.ids),
            (*stem, digits.pick(50, 51, 52)),
            max_tokens=digits.pick(5, 2, 12),
            n=digits.pick(1, 1, 2),
            temperature=digits.pick(1.0, 0.0),
            seed=digits.pick(0, 1),
            priority=digits.pick(0, 1, 2),
            salt=digits.pick("", "", "a"),
            deadline_s=digits.pick(None, None, self.now + 9.0),
        )

    def add_one(self, request: Request) -> None:
        self.requests[request.request_id] = request
        if self.tiers.fetch(request, self.news.append):
            self.waiting[request.request_id] = request
        else:
            self.enter(request)

    def enter(self, request: Request) -> None:
        self.waiting.pop(request.request_id, None)
        try:
            self.scheduler.add(request, self.now)
        except (RequestError, CapacityError):
            del self.requests[request.request_id]

    @precondition(lambda self: self.requests)
    @rule(number=NUMBERS)
    def cancel(self, number):
        digits = Digits(number)
        request = digits.pick(*self.requests.values())
        if self.tiers.cancel(request.request_id) is not None:
            del self.waiting[request.request_id]
            try:
                self.limits.longest(request)
            except RequestError:  # it would have been refused, had it waited
                del self.requests[request.request_id]
                return
            choices = range(request.params.n)
            self.answers.hear(tuple(Delta(request.request_id, choice, (), CANCELLED) for choice in choices))
        else:
            self.answers.hear(self.scheduler.cancel(request.request_id))

    @precondition(lambda self: self.later.tasks)
    @rule(number=NUMBERS)
    def end_copy(self, number):
        """Any that is under way, whole or failing."""
        digits = Digits(number)
        place = digits.pick(*range(len(self.later.tasks)))
        for argument in self.later.tasks[place][1]:
            if isinstance(argument, OracleCopy):
                argument.is_failing = digits.pick(False, False, False, True)
        try:
            self.later.run(place)
        except OSError:
            assert isinstance(self.runner, CopyingRunner)

    @precondition(lambda self: self.news)
    @rule()
    def hear_news(self):
        for request in self.tiers.take(self.news.pop(0)):
            self.enter(request)

    @precondition(lambda self: len(self.flying) < MAX_AHEAD)
    @rule()
    def launch(self):
        self.tiers.swap_in()
        contents = list(self.scheduler.pool._contents)
        batch = self.scheduler.schedule(self.now)
        if batch is not None:
            self.assert_writes_are_private(batch, contents)
            written = {block for own in self.writes[batch.step] for block in own}
            assert not written & self.scheduler.pool.leaving, "taken before its copy was over"
            self.tiers.departures.copy_out(batch.step)
            self.flying.append((batch, self.runner.launch(batch).result()))

    @precondition(lambda self: self.flying)
    @rule()
    def collect(self):
        self.tiers.departures.settle(self.flying[0][0].step)
        super().collect()

    @precondition(lambda self: self.flying)
    @rule(number=NUMBERS)
    def collect_failure(self, number):
        self.tiers.departures.distrust()
        kept = self.written_since(self.flying[0][0].step)
        super().collect_failure(number)
        self.runner._digests[:] = [kept.get(block, held) for block, held in enumerate(self.runner._digests)]

    def written_since(self, step: int) -> dict[int, list[int]]:
        """What copies have laid down since a step was launched: nothing that a failed one was to write."""
        digests, written = self.runner._digests, self.runner.written
        return {block: list(digests[block]) for block, launched in written.items() if launched >= step}

    @precondition(lambda self: self.flying)
    @rule(number=NUMBERS)
    def abandon(self, number):
        self.tiers.departures.distrust()
        oldest = self.flying[-1 - number % len(self.flying)][0].step
        kept = self.written_since(oldest)
        super().abandon(number)
        self.runner._digests[:] = [kept.get(block, held) for block, held in enumerate(self.runner._digests)]

    def teardown(self):
        if hasattr(self, "tiers"):
            while self.later.tasks or self.news or self.tiers.is_fetching:
                self.end_copy(0) if self.later.tasks else self.hear_news()
            assert not self.waiting
            self.drain()

    def drain(self) -> None:
        for _ in range(5000):
            if not (self.scheduler.has_work or self.flying or self.later.tasks or self.news):
                break
            self.launch()
            if self.flying:
                self.collect()
            while self.later.tasks or self.news:
                self.end_copy(0) if self.later.tasks else self.hear_news()
            self.now = max(self.now, self.scheduler.wake_s or self.now)
            self.advance(0.0)
            self.scheduler.check()
        assert not self.scheduler.has_work, "no end in sight"
        self.assert_all_answered()
        self.assert_nothing_held()
        assert not self.scheduler.pool.leaving
        assert not self.scheduler.pool.num_arriving


def test_any_mix_of_events_keeps_the_books_and_the_answers_right() -> None:
    run(60, 40, ServingTiers)


@pytest.mark.slow
def test_any_mix_of_events_keeps_the_books_and_the_answers_right_at_length() -> None:
    run(10_000, 100, ServingTiers)
