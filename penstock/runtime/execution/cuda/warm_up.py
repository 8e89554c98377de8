"""Which kernels steps will need is asked of the steps themselves, before any are computed; other processes compile them.

Until what the first steps need is there, small ones are computed by the operations' definitions and large ones wait.
"""

import copy
from bisect import bisect
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import nn

from penstock.runtime.core.batch import Batch
from penstock.runtime.execution.cuda.forward import RecordedSteps
from penstock.runtime.execution.cuda.graphs import SIZES, padded_size
from penstock.runtime.execution.cuda.mixed_graphs import LEAST_CHUNKS, LEAST_TOKENS, padded_chunks
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.cuda.verify_graphs import COMMON_SIZES
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.parallel.collective import rehearsed
from penstock.runtime.ops.sampling.sample import Needs

if TYPE_CHECKING:
    from penstock.runtime.ops.triton.host.compile_ahead import Compilers

MAX_PLAIN_CHUNKS = 4
MAX_PLAIN_PAIRS = 1 << 18
"""Queries times keys of a step that is computed without kernels rather than waiting for them."""

MAX_PLAIN_STEPS = 256
"""Enough of them to compile anything: after that something is wrong, and steps wait too."""
FILTERS = ((True, True, True), (False, False, False), (True, False, False), (True, False, True), (True, True, False))
SPECIAL = tuple(Needs(adjusts, *filters) for adjusts in (False, True) for filters in FILTERS if adjusts or filters[0])
"""Draws that need more than a temperature; the likeliest first."""
CHECKS = (*((size, 1) for size in COMMON_SIZES), (1, 5), (1, 3), (1, 9), (8, 3), (8, 5), (32, 3), (32, 5))
"""Sequences and positions each of steps that check drafts."""
APART = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 33, 44, 48, 64, 66, 96, 128, 132, 192, 256, 384, 512)
"""Generations beside a prompt, in steps too long to be recorded: every way of cutting their keys is among these."""
WIDTHS = (2, 4, 8, 16)
"""Tokens of each chunk, in steps whose chunks are all alike and short: prompts of which all but the end was cached."""
ADAPTED = (40, 72, 136)
"""Chunks of the widest in steps with adapters, whose kernels go by the number of tokens too."""
EARLY_STEPS = 2
"""Launched before the tokens of the first are known: an engine has as many under way."""


class KernelWarmUp:
    """Of a prompt and the tokens after it; then, once those can be computed, of steps of other sizes.

    Unless it is begun earlier it begins when the first token is there: no step waits for it before that.
    """

    def __init__(
        self, model: Decoder, recorded: tuple[RecordedSteps, RecordedSteps], rows: DeviceRows, max_sequences: int
    ) -> None:
        """`recorded` are steps without adapters and with them."""
        self._model = excerpt(model)
        self._recorded = recorded
        self._rows = rows
        self._max_sequences = max_sequences
        self._is_due = find_spec("triton") is not None
        self._num_plain = 0
        self._urgent: Compilers | None = None
        self._others: Compilers | None = None

    @property
    def kinds(self) -> tuple[RecordedSteps, ...]:
        """Of steps that may come."""
        return self._recorded[:1] if self._rows.adapters is None else self._recorded

    def begin(self) -> None:
        if self._is_due:
            self._is_due = False
            self._urgent = self._compile(SIZES[:1], (LEAST_CHUNKS,))

    def has_kernels(self, batch: Batch) -> bool:
        """Whether the kernels are there that this step needs; a large one waits for them."""
        if not self._is_due and self._urgent is None:
            return True
        num_pairs = sum(chunk.length * chunk.end for chunk in batch.chunks)
        is_small = len(batch.chunks) <= MAX_PLAIN_CHUNKS and num_pairs <= MAX_PLAIN_PAIRS
        is_small = is_small and self._num_plain < MAX_PLAIN_STEPS
        self._num_plain += is_small
        if self._is_due and is_small and self._num_plain <= EARLY_STEPS:
            return False
        return self._are_ready(wait=not is_small)

    def wait(self) -> None:
        """Have what the first steps need compiled now: ranks that compute together take the same kernels from the first on."""
        self._are_ready(wait=True)

    def _are_ready(self, *, wait: bool) -> bool:
        self.begin()
        if self._urgent is None:
            return True  # they had all been compiled in this process
        if not self._urgent.are_ready(wait=wait):
            return False
        if self._urgent.found_new:  # else an earlier process has left the others too
            self._others = self._compile_others()
        self._urgent = None
        return True

    @torch.inference_mode()
    def finish(self, max_batch_tokens: int, max_context: int) -> None:
        """Wait until everything that any step will need has been compiled, here or by an earlier process."""
        if not self._is_due:
            return
        from penstock.runtime.ops.triton.host.compile_ahead import HELPERS

        self.begin()
        self._prepare_dense(max_batch_tokens, max_context)  # while others compile
        HELPERS.wait()
        self.wait()
        if self._others is not None:
            self._others.are_ready(wait=True)

    def _prepare_dense(self, max_batch_tokens: int, max_context: int) -> None:
        from penstock.runtime.ops.triton.attend.dense import prepare_dense

        model = self._model
        for attention in dict.fromkeys(layer.attention for layer in model.spec.layers):
            if isinstance(attention, GQA):
                prepare_dense(attention, max_batch_tokens, max_context, model.cache_dtype, model.device)

    def compile_all(self) -> "tuple[Compilers, ...]":
        """Ask for all of it now, the most urgent first, without waiting."""
        asked = self._compile(SIZES[:1], (LEAST_CHUNKS,)), self._compile_others()
        return tuple(each for each in asked if each is not None)

    def _compile_others(self) -> "Compilers | None":
        sizes = [size for size in SIZES[1:] if size <= padded_size(self._max_sequences)]
        most_chunks = padded_chunks(self._max_sequences)
        chunk_sizes = [size for size in sizes if padded_chunks(size) == size <= most_chunks]
        counts = APART[: bisect(APART, self._max_sequences)]
        apart = [[*[1] * count, LEAST_TOKENS] for count in counts]
        apart += [[width] * count for width in WIDTHS for count in counts[::2]]
        if self._rows.adapters is not None:
            apart += [[WIDTHS[-1]] * count for count in ADAPTED]
        return self._compile(sizes, chunk_sizes, SPECIAL, CHECKS, apart)

    @torch.inference_mode()
    def _compile(
        self,
        decode_sizes: Sequence[int],
        mixed_sizes: Sequence[int],
        special: Sequence[Needs] = (),
        checks: Sequence[tuple[int, int]] = (),
        apart: Sequence[list[int]] = (),
    ) -> "Compilers | None":
        from penstock.runtime.ops.triton.host.compile_ahead import Compilers, prepare
        from penstock.runtime.ops.triton.host.launch import asking

        prepare().result()
        with asking() as variants, rehearsed():
            for recorded in self.kinds:
                for num_chunks in mixed_sizes:
                    recorded.mixed.warm_up(self._model, num_chunks)
                for lengths in apart:
                    recorded.mixed.warm_up_apart(self._model, lengths)
                for size in decode_sizes:
                    recorded.decodes.warm_up(self._model, size)
                for needs in special:
                    recorded.decodes.warm_up(self._model, SIZES[0], needs)
                for size, width in checks:
                    recorded.checks.warm_up(self._model, size, width)
        return Compilers(variants) if variants else None


def excerpt(model: Decoder) -> Decoder:
    """The model with one layer of each kind: what those ask for, the others do."""
    numbers = {layer: number for number, layer in reversed(list(enumerate(model.spec.layers)))}
    short = copy.copy(model)
    short._modules = dict(model._modules)
    short.layers = nn.ModuleList(model.layers[number] for number in sorted(numbers.values()))
    return short
