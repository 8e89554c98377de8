"""Arguments of the operations of `ops.kinds.scan`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.ops.kinds.scan import ScanInputs, causal_conv, state_scan
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from tests.ops.examples import examples_of
from tests.ops.examples.attention import example_layout


def example_states(device: torch.device) -> Iterator[tuple[BatchLayout, StateLayout, Callable[..., Tensor]]]:
    """Where chunks and their states lie, and what makes random numbers of a shape."""
    generator = torch.Generator(device).manual_seed(31)
    normal = partial(torch.randn, generator=generator, device=device)
    for lengths, contexts in (([1], [1]), ([1, 1, 1], [1, 9, 90]), ([3, 1, 70], [3, 9, 90])):
        layout = example_layout(lengths, contexts, 8, 40, generator)
        read = [-1 if length == context else number for number, (length, context) in enumerate(zip(lengths, contexts))]
        written = [number + 2 if number == 1 else number for number in range(len(lengths))]
        yield layout, StateLayout(torch.tensor(read, device=device), torch.tensor(written, device=device)), normal


@examples_of(causal_conv)
def _conv_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for layout, states, normal in example_states(device):
        yield normal(sum(layout.lengths), 6), normal(6, 4), None, normal(4, 6, 3), layout, states


@examples_of(state_scan)
def _scan_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    spec = Mamba2(4, 8, 5, 2, 4)
    for layout, states, normal in example_states(device):
        count = sum(layout.lengths)
        inputs = ScanInputs(normal(count, 4, 8), normal(count, 2, 5), normal(count, 2, 5), normal(count, 4).abs())
        yield inputs.values, inputs, -normal(4).abs(), normal(4, 4, 8, 5), layout, states, spec
