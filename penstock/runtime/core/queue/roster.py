"""Which sequences wait and which run: admission, leaving, and the rows of running ones.

Sole writer of queues and epochs. Knows no steps, and nothing of what is computed.
"""

from collections import Counter
from collections.abc import Callable

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.batching import Batching
from penstock.runtime.core.queue.order import Order
from penstock.runtime.core.sequence import Sequence


class Roster:
    """A sequence waits, runs, or does neither (not yet, or it has ended). Only running sequences hold blocks and a row."""

    def __init__(self, limits: Limits, pool: BlockPool, order: Order, batching: Batching) -> None:
        self.order = order
        self.batching = batching
        self.now = 0.0
        """The latest time given by the driver."""
        self.running: dict[Sequence, None] = {}
        self.behind: dict[Sequence, None] = {}
        """Running sequences whose prompt is not computed yet."""
        self.batch: dict[Sequence, None] = {}
        """Running batch sequences."""
        self.tenants: Counter[str] = Counter()
        """Running sequences of each tenant, batch sequences apart."""
        self.shared_until_s = 0.0
        """Several tenants have work, or had some until a little before this."""
        self.turns: dict[str, int] = {}
        """Epoch of the sequence at which each tenant's last step ended, where not all of its sequences fitted."""
        self.num_batch_waiting = 0
        """Waiting batch sequences; they count towards no limit of interactive ones."""
        self.num_waiting_tokens = 0
        self.on_preempt: Callable[[Sequence], None] | None = None
        """Called with a sequence that is about to lose its blocks and wait again."""
        self.pool = pool
        self._max_sequences = limits.max_sequences
        self._rows = list(range(limits.max_sequences - 1, -1, -1))
        self.waiting_since: float | None = None
        """Since when the first waiting sequence waits; None if none waits."""
        self.num_epochs = 0
        """Epochs begun so far."""

    @property
    def has_row(self) -> bool:
        """There is a free row."""
        return bool(self._rows)

    @property
    def is_contended(self) -> bool:
        """An interactive sequence runs or is first in order: batch sequences pause."""
        if len(self.running) > len(self.batch):
            return True
        first = self.order.peek() if self.waiting_since is not None else None
        return first is not None and not first.request.is_batch

    @property
    def opens_s(self) -> float | None:
        """When waiting sequences may be admitted; None if none waits."""
        if self.waiting_since is None:
            return None
        return self.batching.opens_s(self.waiting_since, is_full=len(self.order) >= self._max_sequences)

    def check(self) -> None:
        """Raise RuntimeError if any book does not balance."""
        rows = [sequence.row for sequence in self.running] + self._rows
        if sorted(row for row in rows if row is not None) != list(range(self._max_sequences)):
            raise RuntimeError("rows of running sequences and free rows do not add up")
        if [sequence for sequence in self.running if sequence.is_behind] != list(self.behind):
            raise RuntimeError("prompts that are not computed and those counted as such differ")
        held = [sequence for sequence in self.order if sequence.blocks or sequence.is_running]
        if held:
            raise RuntimeError(f"waiting sequences hold blocks or rows: {held}")
        if [sequence for sequence in self.running if sequence.request.is_batch] != list(self.batch):
            raise RuntimeError("batch sequences that run and those counted as such differ")
        if Counter(sequence.request.tenant for sequence in self.running if sequence not in self.batch) != self.tenants:
            raise RuntimeError("running sequences of tenants are not counted right")
        if sum(sequence.request.is_batch for sequence in self.order) != self.num_batch_waiting:
            raise RuntimeError("batch sequences that wait are not counted right")
        waiting_tokens = sum(len(sequence.tokens) for sequence in self.order if not sequence.request.is_batch)
        if waiting_tokens != self.num_waiting_tokens:
            raise RuntimeError(f"{waiting_tokens} tokens wait but {self.num_waiting_tokens} are counted")

    def wait(self, sequence: Sequence) -> None:
        sequence.is_waiting = True
        self.order.push(sequence)
        self._count_waiting(sequence, 1)
        if self.waiting_since is None:
            self.waiting_since = self.now

    def give_up(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue; it will not be admitted."""
        self.order.remove(sequence)
        self._stop_waiting(sequence)

    def enter(self, sequence: Sequence, num_cached: int) -> int:
        """Admit the first in order, or of its tenant, with the blocks reserved for it; returns its row."""
        if self.order.peek() is sequence:
            self.order.pop()
        else:
            self.order.remove(sequence)
        if not sequence.epoch:  # a charge may change who is first, so it comes after the pop
            self.order.charge(sequence, sequence.num_prompt - num_cached)
        self._stop_waiting(sequence)
        sequence.parent = None
        self.running[sequence] = None
        if sequence.request.is_batch:
            self.batch[sequence] = None
        else:
            self.tenants[sequence.request.tenant] += 1
        self.num_epochs += 1
        row = self._rows.pop()
        sequence.enter(row, num_cached, self.num_epochs)
        if sequence.is_behind:
            self.behind[sequence] = None
        return row

    def leave(self, sequence: Sequence) -> None:
        """A running sequence gives its row and blocks back; its published blocks stay cached."""
        if sequence.row is not None:
            self._rows.append(sequence.row)
        del self.running[sequence]
        if not sequence.request.is_batch:
            tenant = sequence.request.tenant
            self.tenants[tenant] -= 1
            if not self.tenants[tenant]:
                del self.tenants[tenant]
                self.turns.pop(tenant, None)
        self.batch.pop(sequence, None)
        self.behind.pop(sequence, None)
        self.pool.release(sequence.holding)
        sequence.leave()

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a running sequence: it waits again and recomputes everything that is not cached by then."""
        if self.on_preempt is not None:
            self.on_preempt(sequence)
        self.leave(sequence)
        self.wait(sequence)

    def catch_up(self) -> None:
        """Sequences have advanced: count again which prompts are not computed yet."""
        self.behind = {sequence: None for sequence in self.behind if sequence.is_behind}

    def plannable(self) -> list[Sequence]:
        """Running sequences whose steps are planned one by one, in the order of admission."""
        return list(self.running)

    def _stop_waiting(self, sequence: Sequence) -> None:
        sequence.is_waiting = False
        self._count_waiting(sequence, -1)
        if not len(self.order):
            self.waiting_since = None

    def _count_waiting(self, sequence: Sequence, change: int) -> None:
        if sequence.request.is_batch:
            self.num_batch_waiting += change
        else:
            self.num_waiting_tokens += change * len(sequence.tokens)
