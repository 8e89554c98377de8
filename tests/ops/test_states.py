"""Recurrences: tokens computed one by one, all sequences together, give what chunks give."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.runtime.ops.kinds.delta import delta_scan
from penstock.runtime.ops.kinds.scan import causal_conv, state_scan
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.op import Op
from tests.ops.examples import arguments_of


def picked(value: Any, tokens: torch.Tensor, count: int, layout: BatchLayout, states: StateLayout) -> Any:
    """An argument for some of a step's tokens."""
    if isinstance(value, BatchLayout):
        return layout
    if isinstance(value, StateLayout):
        return states
    if isinstance(value, torch.Tensor):
        return value[tokens] if len(value) == count else value
    if isinstance(value, tuple):
        return type(value)(*(picked(part, tokens, count, layout, states) for part in value))
    return value


@pytest.mark.parametrize("op", [causal_conv, state_scan, delta_scan])
def test_tokens_one_by_one_give_what_chunks_give(op: Op[..., Any]) -> None:
    for arguments in arguments_of(op):
        layout = next(each for each in arguments if isinstance(each, BatchLayout))
        states = next(each for each in arguments if isinstance(each, StateLayout))
        count, lengths = sum(layout.lengths), layout.lengths
        whole, slow = copy.deepcopy(arguments), copy.deepcopy(arguments)
        truth = op.definition(*whole)
        found = torch.full_like(truth, torch.nan)
        begins = [sum(lengths[:number]) for number in range(len(lengths))]
        for step in range(max(lengths)):
            chunks = [number for number, length in enumerate(lengths) if step < length]
            tokens = torch.tensor([begins[number] + step for number in chunks])
            written = states.written[chunks]
            few = replace(layout, lengths=[1] * len(chunks), derived={})
            slots = StateLayout(written if step else states.read[chunks], written)
            found[tokens] = op.definition(*(picked(each, tokens, count, few, slots) for each in slow))
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(slow, whole):
            if isinstance(mine, torch.Tensor):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
