"""Arguments of the operations of `ops.kinds.delta`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.kinds.recurrent import GatedDelta
from penstock.runtime.ops.kinds.delta import DeltaInputs, delta_scan
from tests.ops.examples import examples_of
from tests.ops.examples.kinds_scan import example_states


@examples_of(delta_scan)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    spec = GatedDelta(4, 2, 6, 8, 4)
    for layout, states, normal in example_states(device):
        count = sum(layout.lengths)
        keys, queries = normal(count, 2, 6), normal(count, 2, 6)
        inputs = DeltaInputs(normal(count, 4, 8), keys, queries, normal(count, 4).sigmoid(), -normal(count, 4).abs())
        yield inputs.values, inputs, normal(4, 4, 6, 8), layout, states, spec
