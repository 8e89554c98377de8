"""The scheduler of a replica that fast-forwards: sequences continue by themselves for a run of steps, planned as one chunk.

A chunk of several positions that brings no tokens is such a run. While it lasts, its sequence is left out of the plans and
takes one token of every step's budget. A run may be committed early, with as many tokens as its steps have drawn.
"""

from operator import attrgetter
from typing import ClassVar, cast

from penstock.runtime.core.batch import Batch, Chunk, Delta, StepOutput, make
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.plan import Grown, StepPlan
from penstock.runtime.core.queue.batching import Batching
from penstock.runtime.core.queue.order import Order
from penstock.runtime.core.queue.roster import Roster
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence


def num_run_steps(chunk: Chunk) -> int:
    """Steps that the chunk's sequence continues by itself after the first; 0 for every other chunk."""
    return 0 if chunk.token_ids else chunk.length - 1


class RunRoster(Roster):
    """Knows which of the running sequences fast-forward."""

    __slots__ = ("_is_ordered", "present", "steps")

    def __init__(self, limits: Limits, pool: BlockPool, order: Order, batching: Batching) -> None:
        super().__init__(limits, pool, order, batching)
        self.present: dict[Sequence, None] = {}
        """Running sequences that are not fast-forwarding."""
        self.steps: dict[Sequence, int] = {}
        """Steps that a sequence continues by itself after its next, or since its last."""
        self._is_ordered = True
        """The present sequences are kept in the order of admission."""

    def check(self) -> None:
        super().check()
        absent = {sequence for sequence in self.running if sequence in self.steps and sequence.num_verifying}
        if absent != self.running.keys() - self.present.keys():
            raise RuntimeError("the sequences that fast-forward and those present do not add up to those running")

    def enter(self, sequence: Sequence, num_cached: int) -> int:
        self.present[sequence] = None
        return super().enter(sequence, num_cached)

    def leave(self, sequence: Sequence) -> None:
        self.present.pop(sequence, None)
        self.steps.pop(sequence, None)
        super().leave(sequence)

    def begin_run(self, sequence: Sequence) -> None:
        """The sequence continues by itself, unplanned."""
        del self.present[sequence]

    def end_run(self, sequence: Sequence) -> None:
        if sequence not in self.present:
            self.present[sequence] = None
            self._is_ordered = False

    def plannable(self) -> list[Sequence]:
        present = list(self.present)
        if not self._is_ordered:
            present.sort(key=attrgetter("epoch"))
            self.present = dict.fromkeys(present)
            self._is_ordered = True
        return present


class RunPlan(StepPlan):
    """Decoding sequences are planned for their runs. There are no drafts and no steps in flight beside this one."""

    __slots__ = ()

    def withdraw(self, sequence: Sequence) -> None:
        if sequence in self.sequences:
            self.budget -= num_run_steps(self.chunks[self.sequences.index(sequence)])
        super().withdraw(sequence)

    def add_decodes(self) -> list[Sequence]:
        roster = cast("RunRoster", self._roster)
        present = roster.plannable()
        self.budget -= len(roster.running) - len(present)
        prompts = [sequence for sequence in present if not sequence.holds_next]
        if prompts and not roster.batching.joins:
            return prompts
        if roster.batch and roster.is_contended:
            present = [sequence for sequence in present if not sequence.request.is_batch]
        paused = () if self._shares is None else self._shares.paused
        for sequence in present:
            is_due = sequence.holds_next and sequence not in paused and sequence.num_launched + 1 < sequence.limit
            if is_due and sequence.row is not None:
                self._add_run(roster, sequence, sequence.row)
        return [sequence for sequence in present if not sequence.holds_next and sequence.row is not None]

    def _add_run(self, roster: RunRoster, sequence: Sequence, row: int) -> None:
        start = sequence.num_launched
        num_more = 0
        if sequence in roster.steps:
            num_more = sequence.num_verifying = min(roster.steps[sequence], sequence.limit - len(sequence.tokens) - 1)
        end = start + 1 + num_more
        growth = Grown()
        if num_more or not start % self._limits.block_size:
            computed = end - 1 if num_more else sequence.num_computed
            grown = self.grow_decode(sequence, end, computed, has_drafts=False)
            if grown is None:
                return
            growth = grown
        sequence.num_launched = end
        self.sequences.append(sequence)
        self.chunks.append(
            make(Chunk, (row, start, 1 + num_more, (), growth.new_blocks, True, None, 0, growth.others, growth.state))
        )
        if num_more:
            roster.begin_run(sequence)
        self.budget -= 1


class RunScheduler(Scheduler):
    """Plans runs, and commits them one by one."""

    roster_type: ClassVar[type[Roster]] = RunRoster
    plan_type: ClassVar[type[StepPlan]] = RunPlan
    roster: RunRoster

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """A launched batch as batches of one chunk, to be committed each when it is done: runs have different lengths. Copies
        are due before the first."""
        copies, parts = batch.copies, []
        sequences, last_epoch = self.flights.land(batch.step)
        for chunk, sequence in zip(batch.chunks, sequences, strict=True):
            parts.append(Batch(self.flights.launch([sequence], last_epoch), (chunk,), copies, batch.num_shared))
            copies = ()
        return tuple(parts)

    def commit_run(self, batch: Batch, output: StepOutput, now: float, num_steps: int) -> tuple[Delta, ...]:
        """Commit a batch of one chunk. Its sequence continues so many steps by itself after its next."""
        (sequence,), (chunk,), (drawn,) = self.flights.sequences(batch), batch.chunks, output.tokens
        is_live, steps = bool(self.flights.live(batch)), self.roster.steps
        if is_live and num_run_steps(chunk):
            sequence.num_launched, sequence.num_verifying = chunk.start + len(drawn), 0
            batch = batch._replace(chunks=(chunk._replace(length=len(drawn)),))
            self.roster.end_run(sequence)
        deltas = self.commit(batch, output, now)
        if is_live:
            steps.pop(sequence, None)
            if num_steps and sequence.row is not None:
                steps[sequence] = num_steps
        return deltas
