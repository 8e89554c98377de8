"""Attention over entries that a sequence has kept, and forgetting the rest; see `models.kinds.bounded`."""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.kinds.bounded import PIECE, Bounded
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.rope import Angles, rotate


class BoundedCache(NamedTuple):
    """One layer's entries, [slots, capacity, kv_heads, ...]: keys before they are rotated, values, and sums of weights."""

    keys: Tensor
    values: Tensor
    weights: Tensor


@operation
def bounded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: BoundedCache,
    layout: BatchLayout,
    states: StateLayout,
    spec: Bounded,
    table: Angles | None,
) -> Tensor:
    """Queries, keys and values [tokens, heads, head_dim] that are not rotated yet; `table` has an angle for each entry."""
    outputs = []
    slots = zip(*states.listed())
    parts = zip(*(torch.split(part, layout.lengths) for part in (q, k, v)))
    for (queries, keys, values), end, (read, written) in zip(parts, layout.contexts, slots):
        entries = BoundedCache(*(part[written] for part in cache))
        if read not in (-1, written):
            for mine, before in zip(entries, cache):
                mine.copy_(before[read])
        done, position = 0, end - len(queries)
        while done < len(queries):
            count = min(len(queries) - done, PIECE - position % PIECE)
            piece = slice(done, done + count)
            outputs.append(_piece(queries[piece], keys[piece], values[piece], position, entries, spec, table))
            done, position = done + count, position + count
    return torch.cat(outputs)


def _piece(
    q: Tensor, k: Tensor, v: Tensor, position: int, entries: BoundedCache, spec: Bounded, table: Angles | None
) -> Tensor:
    """Tokens up to the next forgetting at most. What is kept follows from the position."""
    num_held = min(position - position % PIECE, spec.budget) + position % PIECE
    end = num_held + len(q)
    entries.keys[num_held:end], entries.values[num_held:end], entries.weights[num_held:end] = k.float(), v.float(), 0.0
    keys, values, queries = entries.keys[:end], entries.values[:end], q.float()
    if table is not None:
        keys = rotate(keys, Angles(*(part[:end] for part in table)))
        queries = rotate(queries, Angles(*(part[num_held:end] for part in table)))
    shared = spec.attention.num_heads // spec.attention.num_kv_heads
    scores = torch.einsum("qhgd,khd->hgqk", queries.view(len(q), -1, shared, q.shape[-1]), keys) * spec.attention.scale
    if spec.attention.logit_softcap is not None:
        scores = spec.attention.logit_softcap * torch.tanh(scores / spec.attention.logit_softcap)
    places = torch.arange(end, device=q.device)
    weights = torch.softmax(scores.masked_fill(places > places[num_held:, None], -torch.inf), dim=-1)
    out = torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2)
    entries.weights[:end] += weights.sum((1, 2)).t()
    if not (position + len(q)) % PIECE and end > spec.budget:
        _forget(entries, end, spec)
    return out.to(q.dtype)


def _forget(entries: BoundedCache, end: int, spec: Bounded) -> None:
    """Entries that stay move to the front, in their order."""
    old = end - spec.num_recent
    recent = torch.arange(old, end, device=entries.keys.device)
    if spec.keeps == "first":
        kept = torch.cat((torch.arange(spec.num_kept, device=recent.device), recent))
        places = kept[:, None].expand(-1, entries.weights.shape[1])
    else:
        heaviest = entries.weights[:old].topk(spec.num_kept, dim=0).indices.sort(dim=0).values
        places = torch.cat((heaviest, recent[:, None].expand(-1, heaviest.shape[1])))
    for part in entries:
        chosen = places if part.ndim == 2 else places[..., None].expand(-1, -1, part.shape[-1])
        part[: len(places)] = part.gather(0, chosen)
