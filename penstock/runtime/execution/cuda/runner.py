"""A runner that never waits for the GPU between steps.

Tokens drawn stay in their rows on the device, where the next step reads them; the host learns them later, from the ticket.
Until their kernels are compiled, steps take the operations' definitions (see `warm_up`).
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.runner import Masks, RunnerShape, Ticket
from penstock.runtime.execution.cuda.copies import BlockCopies
from penstock.runtime.execution.cuda.forward import GraphForward, Pinned, record_steps
from penstock.runtime.execution.cuda.graphs import make_graph_parts, padded_size
from penstock.runtime.execution.cuda.mixed_graphs import padded_chunks
from penstock.runtime.execution.cuda.warm_up import KernelWarmUp
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.ops.op import plainly
from penstock.runtime.ops.parallel.collective import Peers


@dataclass(frozen=True, slots=True)
class Flight:
    """Tokens on their way to pinned memory."""

    arrived: torch.cuda.Event
    pinned: Tensor

    def tokens(self) -> list[int]:
        self.arrived.synchronize()
        return [int(token) for token in self.pinned.tolist()]


class PinnedSender:
    def __init__(self, most_tokens: int) -> None:
        self._pinned = Pinned(most_tokens)
        self._most_tokens = most_tokens

    def __call__(self, tokens: Tensor | None, count: int) -> Flight:
        """Start tokens on their way to the host, behind all that was sent before."""
        if count > self._most_tokens:  # several a sequence
            self._most_tokens = 2 * count
            self._pinned = Pinned(self._most_tokens)
        out = self._pinned.next()[:count]
        if tokens is not None:
            out.copy_(tokens[:count], non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Flight(arrived, out)


NUM_EARLY_MIXED = 8
"""Sizes of mixed steps recorded before the first request; the others are recorded while nothing is to be done."""


class CudaRunner(StepRunner):
    depth = 2
    """A step is launched while the tokens of the one before it are on their way to the host."""

    def __init__(self, model: Decoder, shape: RunnerShape, cache_dtype: torch.dtype | None = None) -> None:
        max_sequences, parts = shape.max_sequences, make_graph_parts(model, shape, cache_dtype)
        plain, adapted = record_steps(parts), record_steps(parts, is_adapted=True)
        sender = PinnedSender(max(padded_size(max_sequences), padded_chunks(max_sequences)))
        super().__init__(parts, GraphForward(parts, plain, adapted), sender)
        self.copies = BlockCopies(parts.cache, model.device)
        """Blocks to host memory and back, beside the steps."""
        self.pin, self.begin_read, self.begin_write = self.copies.pin, self.copies.begin_read, self.copies.begin_write
        self._plain, self._adapted = plain, adapted
        self._warm_up = KernelWarmUp(model, (plain, adapted), parts.rows, max_sequences)
        self.compile_all = self._warm_up.compile_all
        """Have the kernels of all steps compiled by other processes."""
        self._max_sequences, self._max_context = max_sequences, shape.max_context
        self._rehearsals: Iterator[Callable[[], None]] = iter(())
        """Each records a step of a size that is worth it, before one comes."""

    def warm_up(self, max_batch_tokens: int) -> None:
        """Have every kernel compiled and decode steps of every size recorded, and some others: no request waits for either."""
        self._warm_up.finish(max_batch_tokens, self._max_context)
        kinds = self._warm_up.kinds
        for recorded in kinds:
            recorded.decodes.record_all(self._max_sequences)
        checks = [partial(one.checks.record, size) for one in kinds for size in one.checks.sizes()]
        mixed = (partial(one.mixed.record, size) for one in kinds for size in one.mixed.sizes())
        self._rehearsals = chain(checks, mixed)
        for _ in range(len(checks) + NUM_EARLY_MIXED):
            self.rehearse()

    def join(self, peers: Peers) -> None:
        """Have ranks that compute together choose alike: what one launches piece by piece another must not replay."""
        self._warm_up.wait()
        for recorded in (self._plain, self._adapted):
            recorded.mixed.join(peers)

    def rehearse(self) -> bool:
        """Record a step of one more size, while nothing else is to be done; False if none is left."""
        record = next(self._rehearsals, None)
        if record is not None:
            record()
        return record is not None

    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        with nullcontext() if self._warm_up.has_kernels(batch) else plainly():
            return super().launch(batch, masks)
