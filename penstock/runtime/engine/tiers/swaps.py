"""Waiting sequences that are about to be admitted: they get from host memory what the device lost since they came, had no room
for then, or lost when they were preempted. Meanwhile they do not wait for their turn, and others go before them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest

from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.engine.tiers.arrivals import LandingBlocks
from penstock.runtime.engine.tiers.news import ArrivedBlocks
from penstock.runtime.engine.tiers.policy import LEAST_BLOCKS, Rates
from penstock.runtime.engine.tiers.store import TierStore

MAX_SWAPPED = 8
"""Waiting sequences that are looked at before a plan."""


@dataclass(slots=True)
class Swaps:
    """Belongs to the engine's thread."""

    _scheduler: Scheduler
    _block_bytes: int
    _store: TierStore
    _rates: Rates
    _arrivals: LandingBlocks
    _want: Callable[[Iterable[bytes]], None]
    _held: dict[int, list[Sequence]] = field(default_factory=dict)
    """By arrival, sequences that wait for it, not for their turn; the first is the one it is for."""
    _unseen: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Waiting sequences that were not about to be admitted yet; whether they were preempted."""

    def __post_init__(self) -> None:
        self._scheduler.roster.on_preempt = self._swap_out

    def come(self, request_id: int) -> None:
        """A request that will wait."""
        self._unseen[request_id, 0] = False

    def forget(self, request_id: int, choice: int = 0) -> None:
        """It is admitted, over, or to be computed."""
        self._unseen.pop((request_id, choice), None)

    def land(self, arrived: ArrivedBlocks) -> bool:
        """Sequences that waited for an arrival wait for their turn again; False if none did."""
        held = self._held.pop(arrived.number, None)
        for sequence in held or ():
            if sequence.finish is None:
                self._scheduler.roster.wait(sequence)
                if arrived.is_whole:  # there may be more for those that waited for the load of another
                    self._unseen[sequence.request_id, sequence.choice] = False
        return held is not None

    def _swap_out(self, sequence: Sequence) -> None:
        """A sequence is preempted: what it has computed is worth a copy where that comes back sooner than it would be
        computed again."""
        hashes = sequence.holding.hashes[: sequence.holding.num_published]
        if hashes and self._is_faster(len(hashes)):
            self._want(hashes)
            self._unseen[sequence.request_id, sequence.choice] = True

    def _is_faster(self, num_blocks: int) -> bool:
        size = self._scheduler.pool.block_size
        return self._rates.is_writing_faster(num_blocks * size, num_blocks * self._block_bytes)

    def swap_in(self) -> None:
        """Before a plan."""
        roster, pool = self._scheduler.roster, self._scheduler.pool
        if not self._unseen or roster.waiting_since is None or not roster.has_row:
            return
        num_free = pool.num_available - self._scheduler.num_running
        num_rows = self._scheduler.limits.max_sequences - self._scheduler.num_running
        # In order: what was loaded for those before is theirs, and no room for those after.
        for sequence in nsmallest(min(MAX_SWAPPED, num_rows), roster.order, key=roster.order.rank):
            num_free -= pool.blocks_for(len(sequence.tokens))
            if num_free < 0:
                return
            was_preempted = self._unseen.pop((sequence.request_id, sequence.choice), None)
            if was_preempted is not None:
                self._swap_in(sequence, was_preempted=was_preempted)

    def _swap_in(self, sequence: Sequence, *, was_preempted: bool) -> None:
        pool = self._scheduler.pool
        first = len(pool.match(sequence.holding).blocks)
        missing, records = sequence.holding.hashes[first:], []
        number = self._arrivals.coming.get(missing[0]) if missing else None
        if number in self._held:
            self._held[number].append(sequence)
            self._scheduler.roster.give_up(sequence)
            self._store.count(attached=1)
            return
        for hash in missing:
            record = self._store.held(hash)
            if record is None:
                break
            records.append(record)
        if len(records) < LEAST_BLOCKS or not self._is_faster(len(records)):
            return
        tokens = sequence.tokens[: (first + len(records)) * pool.block_size]
        if self._arrivals.begin(sequence.request, tokens, tuple(records), len(records), was_preempted=was_preempted):
            self._held[self._arrivals.number] = [sequence]
            self._scheduler.roster.give_up(sequence)
