"""Arguments of the operations of `ops.kinds.bounded`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.spec import GQA, Rope
from penstock.runtime.ops.kinds.bounded import BoundedCache, bounded_attention
from penstock.runtime.ops.rope import angle_table
from tests.ops.examples import examples_of
from tests.ops.examples.kinds_scan import example_states


@examples_of(bounded_attention)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    attention = GQA(4, 2, 8, Rope(8), 0.3)
    for spec in (Bounded(attention, "first", 3, 10), Bounded(attention, "heaviest", 3, 10)):
        for layout, states, normal in example_states(device):
            count = sum(layout.lengths)
            shape = 4, spec.capacity, 2
            cache = BoundedCache(normal(*shape, 8), normal(*shape, 8), normal(*shape).abs())
            table = angle_table(Rope(8), spec.capacity, device)
            yield normal(count, 4, 8), normal(count, 2, 8), normal(count, 2, 8), cache, layout, states, spec, table
