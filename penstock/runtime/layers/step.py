"""What every layer of a model is told about the step it computes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from penstock.runtime.models.spec import ModelSpec, Rope
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.rope import Angles, angle_table


class Step(NamedTuple):
    """Where the tokens lie, and for each layer its angles and its cache (an encoder has no caches)."""

    layout: BatchLayout
    angles: Sequence[Angles | None]
    caches: Any
    """By the layer's number."""
    others: Sequence[BatchLayout] = ()
    """The same tokens through a row's further block tables; none where every layer reads the first."""
    states: StateLayout | None = None

    def layout_of(self, table: int) -> BatchLayout:
        return self.others[table - 1] if table and self.others else self.layout


class Rotations:
    """The angles of every rotary scheme in a model, for the contexts it serves. Layers of one scheme share a table."""

    def __init__(self, spec: ModelSpec, max_context: int, device: torch.device) -> None:
        self._ropes = [layer.attention.rope for layer in spec.layers]
        self._tables: dict[Rope, Angles] = {
            rope: angle_table(rope, max_context, device) for rope in set(self._ropes) if rope is not None
        }

    def at(self, positions: torch.Tensor) -> list[Angles | None]:
        """The angles of these positions, layer by layer."""
        angles: dict[Rope | None, Angles | None] = {rope: table.at(positions) for rope, table in self._tables.items()}
        return [angles.get(rope) for rope in self._ropes]

    def tables(self, ropes: Sequence[Rope]) -> list[Angles]:
        """The angles of every position, by rotary scheme."""
        return [self._tables[rope] for rope in ropes]
