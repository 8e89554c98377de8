"""Any mix of adding, cancelling, waiting, launching, collecting, failing and pinning keeps the books and the answers right.

Steps are launched up to three ahead of their results. After every rule the scheduler's books must balance; at the end
everything drains, every choice has ended exactly once, its tokens are the oracle's, and nothing is held.
"""

from collections import Counter, deque
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import CapacityError, RequestError
from penstock.runtime.core.batch import Batch, FinishReason, StepOutput
from penstock.runtime.core.kinds.groups import PLAIN, BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, dynamic
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.engine.oracle import EMPTY, OracleRunner
from tests.core.steps import pin
from tests.engine.answers import VOCAB_SIZE, Answers, expected, make_request

MAX_AHEAD = 3
STEM = tuple(range(7, 19))
NUMBERS = st.integers(0, 2**24)
"""One number describes a whole choice, read digit by digit: cheap to draw, and 0 is the plainest."""


FULL = BlockGroup()
KINDS = (
    CacheGroups(FULL, (BlockGroup(5, 2),)),
    CacheGroups(BlockGroup(4)),
    CacheGroups(FULL, num_states=9),
    CacheGroups(FULL, (BlockGroup(3), BlockGroup(7, 2))),
    CacheGroups(BlockGroup(6), (BlockGroup(2),)),
    CacheGroups(FULL, (BlockGroup(4),), num_states=7),
)
"""A window beside a full group, and alone; states; two windows; windows of which the shorter keeps less; all at once."""


class Digits:
    def __init__(self, number: int) -> None:
        self._rest = number

    def pick(self, *options):
        self._rest, digit = divmod(self._rest, len(options))
        return options[digit]


def make_limits(digits: Digits) -> Limits:
    max_sequences = digits.pick(3, 4, 6, 1)
    return Limits(
        num_blocks=digits.pick(10, 6, 8, 24),
        block_size=digits.pick(2, 3, 1, 4),
        max_context=40,
        max_batch_tokens=digits.pick(8, max_sequences, max(max_sequences, 5), 40),
        max_sequences=max_sequences,
        max_waiting=digits.pick(100, 3),
        max_waiting_tokens=digits.pick(1000, 20),
        prefix_caching=digits.pick(True, True, True, False),
        num_kept_blocks=digits.pick(None, 4),
    )


class Serving(RuleBasedStateMachine):
    kinds: tuple[CacheGroups, ...] = (PLAIN,)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ids = count(1)
        self.requests: dict[int, Request] = {}
        self.answers = Answers()
        self.flying: deque[tuple[Batch, StepOutput]] = deque()
        self.writes: dict[int, list[list[int]]] = {}
        """Blocks that each chunk of a launched step writes."""

    @initialize(number=NUMBERS)
    def begin(self, number):
        digits = Digits(number)
        groups = digits.pick(*self.kinds)
        self.limits = make_limits(digits)._replace(groups=groups)
        if groups is not PLAIN:
            self.limits = self.limits._replace(num_blocks=self.limits.num_blocks * 2 * groups.width)
        self.batching = digits.pick(CONTINUOUS, CONTINUOUS, CONTINUOUS, STATIC, dynamic(2.0))
        order = ORDERS[digits.pick(*ORDERS)]()
        self.scheduler = Scheduler(self.limits, order, self.batching)
        self.runner = OracleRunner(
            self.limits.num_blocks,
            self.limits.block_size,
            vocab_size=VOCAB_SIZE,
            num_drafts=digits.pick(0, 2, 0, 4),
            groups=groups,
        )

    # What clients do

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=6))
    def add(self, numbers):
        for number in numbers:
            self.add_one(self.make_request(Digits(number)))

    def make_request(self, digits: Digits) -> Request:
        return make_request(
            next(self.ids),
            STEM[: digits.pick(0, 4, 7, 12)] + (digits.pick(50, 51, 52),) * digits.pick(1, 2, 5),
            max_tokens=digits.pick(5, 9, 2, 30),
            n=digits.pick(1, 1, 2, 3),
            temperature=digits.pick(1.0, 0.0),
            seed=digits.pick(0, 1),
            stop_token_ids=digits.pick((), tuple(range(0, VOCAB_SIZE, 6))),
            min_tokens=digits.pick(0, 2),
            priority=digits.pick(0, 1, 2),
            tenant=digits.pick("a", "b", "c"),
            salt=digits.pick("", "", "a"),
            deadline_s=digits.pick(None, None, self.now + 3.0, self.now + 9.0),
        )

    def add_one(self, request: Request) -> None:
        load = self.scheduler.load
        num_longest = len(request.prompt) + request.params.max_tokens
        try:
            self.scheduler.add(request, self.now)
        except RequestError:
            assert num_longest > self.limits.max_positions
        except CapacityError:
            num_waiting = load.num_waiting + request.params.n
            num_tokens = load.num_waiting_tokens + len(request.prompt)
            assert num_waiting > self.limits.max_waiting or num_tokens > self.limits.max_waiting_tokens
        else:
            assert num_longest <= self.limits.max_positions
            self.requests[request.request_id] = request

    @precondition(lambda self: self.requests)
    @rule(number=NUMBERS)
    def cancel(self, number):
        digits = Digits(number)
        request = digits.pick(*self.requests.values())
        choice = digits.pick(None, *range(request.params.n))
        self.answers.hear(self.scheduler.cancel(request.request_id, choice))
        if choice is None:
            assert not any(request.request_id == one.request.request_id for one in self.scheduler.roster.running)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def advance(self, seconds):
        self.now += seconds
        self.answers.hear(self.scheduler.expire(self.now))

    @precondition(lambda self: self.requests)
    @rule(number=NUMBERS)
    def pin(self, number):
        digits = Digits(number)
        request = digits.pick(*self.requests.values())
        num_pinned = pin(self.scheduler, request, self.now + digits.pick(1.0, 5.0, 50.0))
        assert num_pinned <= max(len(request.prompt) - 1, 0)
        assert num_pinned % self.limits.block_size == 0

    # What the engine does

    @precondition(lambda self: len(self.flying) < MAX_AHEAD)
    @rule()
    def launch(self):
        contents = list(self.scheduler.pool._contents)
        batch = self.scheduler.schedule(self.now)
        if batch is not None:
            self.assert_writes_are_private(batch, contents)
            assert 0 < batch.num_tokens <= self.limits.max_batch_tokens
            self.flying.append((batch, self.runner.launch(batch).result()))

    @precondition(lambda self: self.flying)
    @rule()
    def collect(self):
        batch, output = self.flying.popleft()
        self.answers.hear(self.scheduler.commit(batch, output, self.now))

    @precondition(lambda self: self.flying)
    @rule(number=NUMBERS)
    def collect_failure(self, number):
        """What a failed chunk was to write is not there: whoever reads it nevertheless gives a wrong answer."""
        batch, output = self.flying.popleft()
        index = number % len(batch.chunks)
        output = output._replace(failures=((index, "planted"),))
        self.answers.hear(self.scheduler.commit(batch, output, self.now))
        written_since = {block for later, _ in self.flying for own in self.writes[later.step] for block in own} | {
            target for later, _ in self.flying for _, target in later.copies
        }
        for block in set(self.writes[batch.step][index]) - written_since:
            self.runner._digests[block][:] = [EMPTY] * self.limits.block_size

    @precondition(lambda self: self.flying)
    @rule(number=NUMBERS)
    def abandon(self, number):
        """Steps are interrupted, the newest first: nothing that they were to write is there."""
        size = self.limits.block_size
        for _ in range(1 + number % len(self.flying)):
            batch, _ = self.flying.pop()
            self.scheduler.abandon(batch)
            for chunk, own in zip(batch.chunks, self.writes[batch.step], strict=True):
                width = len(own) // (-(-chunk.end // size) - chunk.start // size)
                for position in range(chunk.start, chunk.end):
                    for block in own[(position // size - chunk.start // size) * width :][:width]:
                        self.runner._digests[block][position % size] = EMPTY

    # What must hold

    @invariant()
    def books_balance(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    @invariant()
    def tokens_are_pending_while_their_steps_fly(self):
        if hasattr(self, "scheduler"):
            drawing = Counter(
                self.scheduler.flights.sequences(batch)[index]
                for batch, _ in self.flying
                for index in self.scheduler.flights.live(batch)
                if batch.chunks[index].samples
            )
            assert all(one.num_pending == drawing[one] for one in self.scheduler.roster.running)

    def assert_writes_are_private(self, batch, contents):
        """A block that is written has one writer in the step, and what it held before is forgotten.

        Whoever else holds it found it whole, comes later in the step, and its writer is of more than one token.
        """
        pool, size = self.scheduler.pool, self.limits.block_size
        writers: dict[int, int] = {}
        flight = self.scheduler.flights.sequences(batch)
        self.writes[batch.step] = []
        for index, (sequence, chunk) in enumerate(zip(flight, batch.chunks, strict=True)):
            assert chunk.row == sequence.row
            numbers = range(chunk.start // size, -(-chunk.end // size))
            own = [block for number in numbers for block in ids_of(sequence, self.limits.groups, number)]
            assert len(own) == len(numbers) * self.limits.groups.width
            assert not writers.keys() & own
            for block in writers.keys() & sequence.blocks[sequence.holding.first :]:
                assert batch.chunks[writers[block]].length > 1
            writers.update(dict.fromkeys(own, index))
            self.writes[batch.step].append(own)
            for number in numbers:
                # A further group's block may come back to the content that it was taken from.
                block = sequence.blocks[number]
                assert pool._contents[block] is None or pool._contents[block] is not contents[block]
                for block in ids_of(sequence, self.limits.groups, number):
                    assert pool._references[block] == 1 or (number + 1) * size <= chunk.end
        for index, sequence in enumerate(flight):
            assert all(writers.get(block, index) <= index for block in sequence.blocks[sequence.holding.first :])
        for source, target in batch.copies:
            assert pool._references[target] == 1
            assert pool._references[source] >= 1
            assert source != target

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work and not self.flying:
                break
            self.launch()
            if self.flying:
                self.collect()
            else:
                self.now = max(self.now, self.scheduler.wake_s or self.now)
                self.advance(0.0)
            self.scheduler.check()
        assert not self.scheduler.has_work, "no end in sight"
        self.assert_all_answered()
        self.assert_nothing_held()

    def assert_all_answered(self):
        wanted = {(number, choice) for number, one in self.requests.items() for choice in range(one.params.n)}
        assert set(self.answers) == wanted
        for (number, choice), answer in self.answers.items():
            right, reason = expected(self.requests[number], choice, self.limits)
            if answer.reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert (answer.tokens, answer.reason) == (right, reason)
            else:
                assert answer.finish is not None
                assert answer.tokens == right[: len(answer.tokens)]

    def assert_nothing_held(self):
        scheduler, pool = self.scheduler, self.scheduler.pool
        assert scheduler.load[:3] == (0, 0, 0)
        assert sorted(scheduler.roster._rows) == list(range(self.limits.max_sequences))
        assert not scheduler.flights
        assert pool._references == [0] * self.limits.num_blocks
        pool.unpin_expired(self.now + 1e9)
        assert pool.num_available == self.limits.num_blocks
        scheduler.check()


def ids_of(sequence: Sequence, groups: CacheGroups, number: int) -> list[int]:
    """All ids of a sequence's block, group by group."""
    held = zip((sequence.holding, *sequence.holding.others), (groups.first, *groups.others))
    return [block for each, group in held for block in each.blocks[number * group.width : (number + 1) * group.width]]


class ServingKinds(Serving):
    kinds = KINDS


def run(max_examples: int, num_rules: int, machine: type[Serving] = Serving, **options: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=num_rules,
            deadline=None,
            derandomize=True,
            database=None,
            **options,
        ),
    )


def test_any_mix_of_events_keeps_the_books_and_the_answers_right():
    run(500, 40)


def test_so_it_does_with_windows_that_free_and_with_states():
    run(500, 40, ServingKinds)


@pytest.mark.slow
def test_so_it_does_with_windows_that_free_and_with_states_at_length():
    run(10_000, 100, ServingKinds)


@pytest.mark.slow
def test_any_mix_of_events_keeps_the_books_and_the_answers_right_at_length():
    run(10_000, 100)
