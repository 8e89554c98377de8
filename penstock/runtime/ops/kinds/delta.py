"""The gated delta rule: a state of keys and values that is corrected at every token.

    S = exp(decay) S;   S = S + strength * key (value - key S);   out = query S

A prompt is computed in pieces of `PIECE` tokens: what each token writes depends on what those before it in the piece wrote,
which is a triangular system.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.kinds.recurrent import GatedDelta
from penstock.runtime.ops.kinds.scan import begun, chunk_by_chunk, piece_by_piece
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.op import operation

EPS = 1e-6
"""Under the root of what keys and queries are divided by."""


class DeltaInputs(NamedTuple):
    """Values [tokens, heads, value_dim], keys and queries [tokens, key heads, key_dim], strengths and logs of decays [tokens,
    heads]."""

    values: Tensor
    keys: Tensor
    queries: Tensor
    strengths: Tensor
    decays: Tensor


@operation
def delta_scan(
    values: Tensor, inputs: DeltaInputs, held: Tensor, layout: BatchLayout, states: StateLayout, spec: GatedDelta
) -> Tensor:
    """What queries read of the states [heads, key_dim, value_dim], in float32: [tokens, heads, value_dim]."""
    shared = spec.num_heads // spec.num_key_heads

    def singles(inputs: Sequence[Tensor], states: StateLayout) -> Tensor:
        out, after = _tokens(DeltaInputs(*inputs), begun(held, states), spec)
        held.index_copy_(0, states.written, after)
        return out

    def piece(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        value, key, query, strength, decay = parts
        key, query = (_unit(part).repeat_interleave(shared, dim=1) for part in (key, query))
        query = query * spec.key_dim**-0.5
        by_head = [part.transpose(0, 1) for part in (value, key, query, strength, decay)]  # [heads, tokens, ...]
        out, state = _piece(by_head, state)
        return out.transpose(0, 1), state

    return chunk_by_chunk(singles, partial(piece_by_piece, piece, held), inputs, layout, states)


def _tokens(inputs: DeltaInputs, state: Tensor, spec: GatedDelta) -> tuple[Tensor, Tensor]:
    """One token for each state [tokens, heads, key_dim, value_dim]."""
    value, key, query, strength, decay = (part.float() for part in inputs)
    shared = spec.num_heads // spec.num_key_heads
    key, query = (_unit(part).repeat_interleave(shared, dim=1)[:, :, None] for part in (key, query))
    left = state * decay.exp()[..., None, None]
    written = strength[..., None, None] * (value[:, :, None] - key @ left)
    after = left + key.transpose(2, 3) * written
    return (query * spec.key_dim**-0.5 @ after)[:, :, 0], after


def _unit(numbers: Tensor) -> Tensor:
    return numbers * torch.rsqrt((numbers * numbers).sum(-1, keepdim=True) + EPS)


def _piece(by_head: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Values, keys, queries, strengths and decays of a few tokens, [heads, tokens, ...] each."""
    value, key, query, strength, decay = by_head
    faded = decay.cumsum(-1)  # log of what is left of the state before, [heads, tokens]
    place = torch.arange(faded.shape[-1], device=faded.device)
    between = (faded[:, :, None] - faded[:, None]).masked_fill(place[:, None] < place, -torch.inf).exp()
    left = faded.exp()[..., None]
    corrections = strength[..., None] * (value - left * (key @ state))
    system = strength[..., None] * (key @ key.transpose(1, 2)) * between
    written = torch.linalg.solve_triangular(system, corrections, upper=False, unitriangular=True)
    out = left * (query @ state) + ((query @ key.transpose(1, 2)) * between) @ written
    fresh = key * (faded[:, -1:] - faded).exp()[..., None]
    return out, state * left[:, -1:] + fresh.transpose(1, 2) @ written
