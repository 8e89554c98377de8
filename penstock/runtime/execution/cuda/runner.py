"""A runner that never waits for the GPU between steps.

Tokens drawn stay in their rows on the device, where the next step reads them; the host learns them later, from the ticket.
Until their kernels are compiled, steps take the operations' definitions (see `warm_up`).
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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


class CudaRunner(StepRunner):
    depth = 2
    """A step is launched while the tokens of the one before it are on their way to the host."""

    def __init__(
        self,
        model: Decoder,
        shape: RunnerShape,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        """One row and one block more than asked for: padding of recorded batches reads and writes there."""
        spec, device = model.spec, model.device
        num_blocks, block_size, max_sequences, max_context = shape[:4]
        cache = KVCache(spec, num_blocks + 1, block_size, cache_dtype or model.cache_dtype, device)
        rotations = Rotations(spec, max_context, device)
        rows = DeviceRows(max_sequences + 1, max_context, block_size, spec.vocab_size, device, num_blocks)
        sampler = Sampler(rows.tokens, rows.sampling)
        parts = GraphParts(model, cache, rotations, rows, sampler, max_sequences, GraphRecorder())
        recorded = record_steps(parts)
        eager = EagerForward(model, rows, cache, rotations, sampler)
        forward = GraphForward(eager, rows, recorded, SampleGraphs(parts), parts)
        sender = PinnedSender(max(padded_size(max_sequences), padded_chunks(max_sequences)))
        super().__init__(rows, cache, forward, sampler, spec.vocab_size, sender)
        self.copies = BlockCopies(cache, device)
        """Blocks to host memory and back, beside the steps."""
        self._warm_up = KernelWarmUp(model, recorded, max_sequences)
        self._recorded = recorded
        self._max_sequences = max_sequences
        self._rehearsals: Iterator[tuple[int, int]] = iter(())
        """Sizes of mixed steps that are worth recording before they come."""

    def warm_up(self, max_batch_tokens: int) -> None:
        """Have every kernel compiled and decode steps of every size recorded: no request waits for either."""
        self._warm_up.finish(max_batch_tokens)
        self._recorded.decodes.record_all(self._max_sequences)
        self._rehearsals = self._recorded.mixed.sizes()

    def rehearse(self) -> bool:
        """Record a mixed step of one more size, while nothing else is to be done; False if none is left."""
        size = next(self._rehearsals, None)
        if size is not None:
            self._recorded.mixed.record(size)
        return size is not None

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
