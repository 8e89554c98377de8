"""Recurrences: what a chunk's tokens make of the state before it, and the state after it.

Chunks are flattened one after another as everywhere; each reads one slot and writes another, or the same. A prompt is computed
in pieces of `PIECE` tokens by products of matrices, which equals going token by token.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.ops.attention import example_layout
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.op import operation

PIECE = 64


class ScanInputs(NamedTuple):
    """Values [tokens, heads, head_dim], keys and queries [tokens, groups, state_size], steps [tokens, heads]."""

    values: Tensor
    keys: Tensor
    queries: Tensor
    steps: Tensor


def example_states(device: torch.device) -> Iterator[tuple[BatchLayout, StateLayout, torch.Generator]]:
    generator = torch.Generator(device).manual_seed(31)
    for lengths, contexts in (([1], [1]), ([3, 1, 70], [3, 9, 90])):
        layout = example_layout(lengths, contexts, 8, 40, generator)
        read = [-1 if length == context else number for number, (length, context) in enumerate(zip(lengths, contexts))]
        written = [number + 2 if number == 1 else number for number in range(len(lengths))]
        yield layout, StateLayout(torch.tensor(read, device=device), torch.tensor(written, device=device)), generator


def _conv_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for layout, states, generator in example_states(device):
        x = torch.randn((sum(layout.lengths), 6), generator=generator, device=device)
        weight = torch.randn((6, 4), generator=generator, device=device)
        held = torch.randn((4, 6, 3), generator=generator, device=device)
        yield x, weight, None, held, layout, states


@operation(_conv_examples)
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, held: Tensor, layout: BatchLayout, states: StateLayout
) -> Tensor:
    """Each of x [tokens, size] with the tokens before it, by weight [size, width]; `held` [slots, size, width - 1] keeps the
    last ones of each sequence."""
    outputs, kept = [], []
    for own, read in zip(torch.split(x, layout.lengths), states.read.tolist()):
        before = torch.zeros_like(held[0]) if read < 0 else held[read]
        line = torch.cat((before.to(x.dtype), own.t()), dim=1)
        outputs.append(functional.conv1d(line[None], weight[:, None], bias, groups=len(weight))[0].t())
        kept.append(line[:, len(own) :].to(held.dtype))
    held.index_copy_(0, states.written, torch.stack(kept))
    return torch.cat(outputs)


def _scan_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    spec = Mamba2(4, 8, 5, 2, 4)
    for layout, states, generator in example_states(device):
        count = sum(layout.lengths)

        def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        inputs = ScanInputs(normal(count, 4, 8), normal(count, 2, 5), normal(count, 2, 5), normal(count, 4).abs())
        yield inputs.values, inputs, -normal(4).abs(), normal(4, 4, 8, 5), layout, states, spec


@operation(_scan_examples)
def state_scan(
    values: Tensor,
    inputs: ScanInputs,
    decays: Tensor,
    held: Tensor,
    layout: BatchLayout,
    states: StateLayout,
    spec: Mamba2,
) -> Tensor:
    """What queries read of the states [heads, head_dim, state_size] as tokens are added to them, in float32: [tokens, heads,
    head_dim]. A head's state decays by exp(step * decay) a token and gains step * value x key."""
    shared = spec.num_heads // spec.num_groups
    outputs, kept = [], []
    for parts, read in zip(zip(*(torch.split(part, layout.lengths) for part in inputs)), states.read.tolist()):
        state = torch.zeros_like(held[0]) if read < 0 else held[read].clone()
        made = []
        for begin in range(0, len(parts[0]), PIECE):
            value, key, query, step = (part[begin : begin + PIECE].float() for part in parts)
            key, query = (part.repeat_interleave(shared, dim=1) for part in (key, query))
            out, state = _piece(value, key, query, step, decays, state)
            made.append(out)
        outputs += made
        kept.append(state)
    held.index_copy_(0, states.written, torch.stack(kept))
    return torch.cat(outputs)


def _piece(
    value: Tensor, key: Tensor, query: Tensor, step: Tensor, decays: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """A few tokens at once: what they read of the state before them, and of each other."""
    faded = (step * decays).cumsum(0)  # log of what is left of the state before, [tokens, heads]
    place = torch.arange(len(step), device=step.device)
    between = (faded[:, None] - faded[None]).masked_fill((place[:, None] < place)[..., None], -torch.inf)
    weights = torch.einsum("thn,shn->tsh", query, key) * between.exp() * step
    out = torch.einsum("tsh,shp->thp", weights, value)
    out = out + torch.einsum("thn,hpn->thp", query, state) * faded.exp()[..., None]
    gained = torch.einsum("shp,shn,sh->hpn", value, key, step * (faded[-1] - faded).exp())
    return out, state * faded[-1].exp()[:, None, None] + gained
