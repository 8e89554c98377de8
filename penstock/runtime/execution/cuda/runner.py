"""A runner that never waits for the GPU between steps.

Tokens drawn stay in their rows on the device, where the next step reads them; the host learns them later, from the ticket.
Until their kernels are compiled, steps take the operations' definitions (see `warm_up`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.runner import Masks, RunnerShape, Ticket
from penstock.runtime.execution.cuda.copies import BlockCopies, CudaCopy
from penstock.runtime.execution.cuda.forward import GraphForward, Pinned, record_steps
from penstock.runtime.execution.cuda.graphs import GraphParts, GraphRecorder, SampleGraphs, padded_size
from penstock.runtime.execution.cuda.mixed_graphs import padded_chunks
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.cuda.warm_up import KernelWarmUp
from penstock.runtime.execution.eager.forward import EagerForward
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.eager.sampler import Sampler
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations
from penstock.runtime.ops.op import plainly
from penstock.runtime.ops.parallel.collective import Peers

if TYPE_CHECKING:
    from penstock.runtime.ops.triton.host.compile_ahead import Compilers


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

    def __init__(
        self,
        model: Decoder,
        shape: RunnerShape,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        """One row, one block and one state more than asked for: padding of recorded batches reads and writes there."""
        spec, device = model.spec, model.device
        num_blocks, block_size = shape.num_blocks, shape.block_size
        max_sequences, max_context = shape.max_sequences, shape.max_context
        dtype, frees = cache_dtype or model.cache_dtype, shape.frees
        idle_state = shape.num_states if any(group.kind == "state" for group in spec.cache_groups) else None
        num_states = 0 if idle_state is None else idle_state + 1
        cache = KVCache(spec, num_blocks + 1, block_size, dtype, device, frees=frees, num_states=num_states)
        rotations = Rotations(spec, max_context, device)
        groups = spec.cache_layout(frees=frees).groups
        sizes = max_sequences + 1, max_context, block_size, spec.vocab_size
        rows = DeviceRows(*sizes, device, num_blocks, groups, idle_state)
        sampler = Sampler(rows.tokens, rows.sampling)
        parts = GraphParts(model, cache, rotations, rows, sampler, max_sequences, GraphRecorder())
        plain, adapted = record_steps(parts), record_steps(parts, is_adapted=True)
        eager = EagerForward(model, rows, cache, rotations, sampler)
        forward = GraphForward(eager, rows, plain, adapted, SampleGraphs(parts), parts.idle_row)
        sender = PinnedSender(max(padded_size(max_sequences), padded_chunks(max_sequences)))
        super().__init__(rows, cache, forward, sampler, spec.vocab_size, sender)
        self.copies = BlockCopies(cache, device)
        """Blocks to host memory and back, beside the steps."""
        self._plain, self._adapted = plain, adapted
        self._warm_up = KernelWarmUp(model, (plain, adapted), rows, max_sequences)
        self._max_sequences, self._max_context = max_sequences, max_context
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

    def pin(self, num_bytes: int) -> None:
        """Have host memory ready for so much of blocks."""
        self.copies.pin(num_bytes)

    def begin_read(self, blocks: Sequence[int], *, is_fenced: bool) -> CudaCopy:
        return self.copies.begin_read(blocks, is_fenced=is_fenced)

    def begin_write(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> CudaCopy:
        return self.copies.begin_write(blocks, contents)

    def compile_all(self) -> "tuple[Compilers, ...]":
        """Have the kernels of all steps compiled by other processes."""
        return self._warm_up.compile_all()

    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        with nullcontext() if self._warm_up.has_kernels(batch) else plainly():
            return super().launch(batch, masks)
