"""Runs batches of one model on one device. Implements the engine's `Runner`.

    copies -> rows take in what is new -> one forward pass -> draws -> what came of them

A runner is composed of these parts; every device has its own forward pass and all have one sampler. Nothing outlives a step but
the KV cache and the rows, and a step that failed can be launched again.
"""

from collections.abc import Callable

import torch

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.runner import Masks, RunnerShape, Ticket
from penstock.runtime.execution.adapters.slots import AdapterSlots
from penstock.runtime.execution.eager.forward import EagerForward, Forward, RunnerParts, make_parts
from penstock.runtime.execution.eager.launched import Here, LaunchedStep, Refusals, Sender
from penstock.runtime.execution.eager.prompt import score_prompt, wants_prompt_logprobs
from penstock.runtime.execution.eager.sampler import LogprobTensors
from penstock.runtime.execution.heads.states import StateSink
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.layers.decoder import Decoder


class StepRunner:
    """Every runner: its parts, and a step through them."""

    depth = 1
    """Steps worth having under way at once."""

    def __init__(self, parts: RunnerParts, forward: Forward, send: Sender = Here) -> None:
        self._parts = parts
        self._rows, self._cache, self._sampler = parts.rows, parts.cache, parts.sampler
        self._forward = forward
        self._vocab_size = parts.sampler.vocab_size
        self._send = send
        self.read_blocks, self.write_blocks = parts.cache.read, parts.cache.write
        self.score = forward.score
        """Over the vocabulary, for hidden states that were left; the next call may write over them."""
        self.states: StateSink | None = None
        """Where hidden states are left for a drafter; None without one that reads them."""

    @property
    def adapters(self) -> AdapterSlots | None:
        """What rows may have laid over the model."""
        return self._rows.adapters

    @adapters.setter
    def adapters(self, slots: AdapterSlots | None) -> None:
        self._rows.adapters = slots

    @property
    def block_bytes(self) -> int:
        return self._cache.block_bytes

    @property
    def kv_format(self) -> str:
        return str(self._cache.pages[0][0].dtype)

    def warm_up(self, max_batch_tokens: int) -> None:
        """Make ready for steps of up to so many tokens, where kernels have to be compiled."""

    @torch.inference_mode()
    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        self._cache.copy(batch.copies)
        refusals = self._refusals(batch.chunks)
        chunks = [chunk for index, chunk in enumerate(batch.chunks) if index not in refusals]
        masked = _first_masks(batch.chunks, masks.chunks, refusals) if masks is not None else {}
        self._rows.place(batch.step, chunks)
        plan = self._sampler.plan(chunks, masked)
        scored = [index for index, chunk in enumerate(chunks) if wants_prompt_logprobs(chunk, self._rows)]
        keeps_states = bool(scored) or self.states is not None
        forwarded = self._forward(chunks, plan, keeps_states=keeps_states) if chunks else None
        prompts: dict[int, tuple[LogprobTensors, ...]] = {}
        if keeps_states and forwarded is not None:
            states = forwarded.states()
            if self.states is not None:
                self.states.put(chunks, states)
            parts = torch.split(states, [chunk.length for chunk in chunks])
            prompts = {
                index: score_prompt(chunks[index], self._rows, parts[index], self._forward.score) for index in scored
            }
        self._rows.grow(batch.step, chunks)
        return LaunchedStep(batch, refusals, plan, forwarded, prompts, self._send, self._filling(masks))

    def _refusals(self, chunks: tuple[Chunk, ...]) -> Refusals:
        """A token the model has no embedding for fails its own sequence, not the step."""
        refusals: Refusals = {}
        for index, chunk in enumerate(chunks):
            for token in (min(chunk.token_ids), max(chunk.token_ids)) if chunk.token_ids else ():
                if not 0 <= token < self._vocab_size:
                    refusals[index] = f"token id {token} is outside the vocabulary of {self._vocab_size}"
        return refusals

    def _filling(self, masks: Masks | None) -> Callable[[], None] | None:
        if masks is None:
            return None

        def fill() -> None:
            bits = self._rows.sampling.empty_bits(masks.num_rows)
            masks.fill(bits.numpy().data.cast("B"))
            self._rows.sampling.set_bits(bits)

        return fill


def _first_masks(chunks: tuple[Chunk, ...], masked: tuple[int, ...], refusals: Refusals) -> dict[int, int]:
    """Of each chunk that is computed under masks, counted among those that are computed: its first mask."""
    first_masks: dict[int, int] = {}
    num_masks = 0
    for index in masked:
        if index not in refusals:
            first_masks[index - sum(refused < index for refused in refusals)] = num_masks
        num_masks += 1 + chunks[index].num_drafts
    return first_masks


class ModelRunner(StepRunner):
    """On any device, piece by piece."""

    def __init__(
        self, model: Decoder | NativeDecoder, shape: RunnerShape, cache_dtype: torch.dtype | None = None
    ) -> None:
        size, dtype = (shape.num_blocks, shape.block_size), cache_dtype or model.cache_dtype
        cache = KVCache(model.spec, *size, dtype, model.device, frees=shape.frees, num_states=shape.num_states)
        parts = make_parts(model.spec, shape, model.device, cache)
        super().__init__(parts, EagerForward(model, parts))
