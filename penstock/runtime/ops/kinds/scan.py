"""Recurrences: what a chunk's tokens make of the state before it, and the state after it.

Chunks are flattened one after another as everywhere; each reads one slot and writes another, or the same. A prompt is computed
in pieces of `PIECE` tokens by products of matrices, which equals going token by token. Chunks of one token each are computed
together, and nothing of them is looked up on the host: such steps can be recorded.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.op import operation

PIECE = 64


class ScanInputs(NamedTuple):
    """Values [tokens, heads, head_dim], keys and queries [tokens, groups, state_size], steps [tokens, heads]."""

    values: Tensor
    keys: Tensor
    queries: Tensor
    steps: Tensor


class ByLength(NamedTuple):
    """Chunks of one token, and longer ones: where their tokens are, and their states."""

    singles: Tensor
    single_states: StateLayout
    longer: Tensor
    longer_states: StateLayout
    lengths: list[int]
    """Of the longer ones."""


def chunk_by_chunk(
    singles: Callable[[Sequence[Tensor], StateLayout], Tensor],
    longer: Callable[[Sequence[Tensor], list[int], StateLayout], Tensor],
    inputs: Sequence[Tensor],
    layout: BatchLayout,
    states: StateLayout,
) -> Tensor:
    """What chunks of one token give, all at once, and longer ones, one after another; `inputs` are [tokens, ...] each."""
    count = len(inputs[0])
    if len(layout.lengths) == count:
        return singles(inputs, states)
    if 1 not in layout.lengths:
        return longer(inputs, layout.lengths, states)
    found = layout.derived.get("chunks by length")
    if found is None:
        found = layout.derived["chunks by length"] = _by_length(layout, states)
    few = singles([part.index_select(0, found.singles) for part in inputs], found.single_states)
    rest = longer([part.index_select(0, found.longer) for part in inputs], found.lengths, found.longer_states)
    out = rest.new_empty((count, *rest.shape[1:]))
    return out.index_copy_(0, found.singles, few).index_copy_(0, found.longer, rest)


def _by_length(layout: BatchLayout, states: StateLayout) -> ByLength:
    numbers: tuple[list[int], list[int]] = ([], [])
    tokens: tuple[list[int], list[int]] = ([], [])
    begin = 0
    for number, length in enumerate(layout.lengths):
        numbers[length > 1].append(number)
        tokens[length > 1].extend(range(begin, begin + length))
        begin += length
    device, (read, written) = states.read.device, states.listed()

    def some(chosen: list[int]) -> StateLayout:
        known = [read[number] for number in chosen], [written[number] for number in chosen]
        here = torch.tensor(known, device=device)
        return StateLayout(here[0], here[1], known)

    at = [torch.tensor(each, device=device) for each in tokens]
    lengths = [layout.lengths[number] for number in numbers[1]]
    return ByLength(at[0], some(numbers[0]), at[1], some(numbers[1]), lengths)


def piece_by_piece(
    piece: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]],
    held: Tensor,
    inputs: Sequence[Tensor],
    lengths: list[int],
    states: StateLayout,
) -> Tensor:
    """What longer chunks give, `PIECE` tokens after `PIECE` tokens: `piece` makes of some inputs, and the state before them,
    what they give and the state after them."""
    outputs, kept = [], []
    for parts, read in zip(zip(*(torch.split(part, lengths) for part in inputs)), states.listed()[0]):
        state = torch.zeros_like(held[0]) if read < 0 else held[read].clone()
        for begin in range(0, len(parts[0]), PIECE):
            out, state = piece([part[begin : begin + PIECE].float() for part in parts], state)
            outputs.append(out)
        kept.append(state)
    held.index_copy_(0, states.written, torch.stack(kept))
    return torch.cat(outputs)


def begun(held: Tensor, states: StateLayout) -> Tensor:
    """The state that each chunk begins from, [chunks, ...]."""
    is_there = (states.read >= 0).view(-1, *[1] * (held.ndim - 1))
    return held.index_select(0, states.read.clamp(min=0)).where(is_there, 0.0)


@operation
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, held: Tensor, layout: BatchLayout, states: StateLayout
) -> Tensor:
    """Each of x [tokens, size] with the tokens before it, by weight [size, width]; `held` [slots, size, width - 1] keeps the
    last ones of each sequence."""

    def singles(inputs: Sequence[Tensor], states: StateLayout) -> Tensor:
        lines = torch.cat((begun(held, states).to(x.dtype), inputs[0][..., None]), dim=-1)
        held.index_copy_(0, states.written, lines[..., 1:].to(held.dtype))
        mixed = (lines.float() * weight.float()).sum(-1)
        return (mixed if bias is None else mixed + bias.float()).to(x.dtype)

    def longer(inputs: Sequence[Tensor], lengths: list[int], states: StateLayout) -> Tensor:
        outputs, kept = [], []
        for own, read in zip(torch.split(inputs[0], lengths), states.listed()[0]):
            before = torch.zeros_like(held[0]) if read < 0 else held[read]
            line = torch.cat((before.to(x.dtype), own.t()), dim=1)
            outputs.append(functional.conv1d(line[None], weight[:, None], bias, groups=len(weight))[0].t())
            kept.append(line[:, len(own) :].to(held.dtype))
        held.index_copy_(0, states.written, torch.stack(kept))
        return torch.cat(outputs)

    return chunk_by_chunk(singles, longer, (x,), layout, states)


@operation
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

    def singles(inputs: Sequence[Tensor], states: StateLayout) -> Tensor:
        value, key, query, step = (part.float() for part in inputs)
        key, query = (part.repeat_interleave(shared, dim=1) for part in (key, query))
        left = begun(held, states) * (step * decays).exp()[..., None, None]
        after = left + (step[..., None] * value)[..., None] * key[:, :, None]
        held.index_copy_(0, states.written, after)
        return (after @ query[..., None])[..., 0]

    def piece(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        value, key, query, step = parts
        key, query = (part.repeat_interleave(shared, dim=1) for part in (key, query))
        return _piece(value, key, query, step, decays, state)

    return chunk_by_chunk(singles, partial(piece_by_piece, piece, held), inputs, layout, states)


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
