"""Where the tokens of a step lie: flattened one chunk after another, and in the paged KV cache.

        tokens        | chunk 0 ......... | chunk 1 | chunk 2 .... |
        query_starts  0                   7         8              12

A chunk of length n whose sequence then has `context` tokens holds the queries of positions context - n .. context.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


class LayerCache(NamedTuple):
    """One layer's keys and values, each [num_blocks, block_size, kv_heads, head_dim]. Its numbers outlive a step.

    They are kept as they are computed, or as 8-bit floats (E4M3) without a scale.
    """

    keys: Tensor
    values: Tensor

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]


class ScaledCache(NamedTuple):
    """Keys and values as 8-bit whole numbers, and float32 scales [num_blocks, block_size, kv_heads] of each one's heads."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]


AnyCache = LayerCache | ScaledCache


class LatentCache(NamedTuple):
    """One layer's latents and rotated keys, [num_blocks, block_size, kv_rank + rope_dim], whatever its heads."""

    latents: Tensor

    @property
    def block_size(self) -> int:
        return self.latents.shape[1]


class StateLayout(NamedTuple):
    """Which states a step's chunks begin from and leave, [chunks] each; a slot below zero begins from nothing."""

    read: Tensor
    written: Tensor
    known: tuple[list[int], list[int]] | None = None
    """The same on the host, where a step has it there."""

    def listed(self) -> tuple[list[int], list[int]]:
        """Slots read and written, for code that goes chunk by chunk."""
        return self.known or (self.read.tolist(), self.written.tolist())


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """One step's chunks. The lists repeat two of the tensors for code that runs on the host.

    A step that is recorded for any chunks has empty lists: what its tensors will hold is known on the device alone, chunks may
    have no tokens, and tokens past the last chunk are padding.
    """

    positions: Tensor
    """[tokens] place of each token in its sequence."""
    slots: Tensor
    """[tokens] where each token's key and value go: block * block_size + offset."""
    block_tables: Tensor
    """[chunks, most blocks] block ids of each chunk's sequence; those past its context mean nothing but are in range."""
    query_starts: Tensor
    """[chunks + 1] first flattened token of each chunk."""
    context_lengths: Tensor
    """[chunks] tokens of the sequence once this chunk is in."""
    lengths: list[int]
    contexts: list[int]
    follows: bool = False
    """Chunks may be of one sequence, one behind another: keys and values are written before any of them attends."""
    derived: dict[Hashable, Any] = field(default_factory=dict)
    """Values that a kernel computes once and uses in every layer of the step."""
