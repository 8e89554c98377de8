"""Attention over the paged KV cache, and over a text that is wholly in the step.

The definitions work chunk by chunk with the whole matrix of scores in float32: easy to trust, and the oracle of every
kernel.
"""

import torch
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.layout import AnyCache, BatchLayout, ScaledCache
from penstock.runtime.ops.op import operation


@operation
def attention(q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None) -> Tensor:
    """Each query of q [tokens, heads, head_dim] sees the keys of its own sequence up to its own position."""
    outputs = []
    for queries, table, context in zip(torch.split(q, layout.lengths), layout.block_tables, layout.contexts):
        # Blocks behind the window may be another sequence's by now.
        low = 0 if spec.window is None else max(context - len(queries) - spec.window + 1, 0) // cache.block_size
        blocks = table[low : -(-context // cache.block_size)].long()
        end = context - low * cache.block_size
        keys, values = (part.flatten(0, 1)[:end] for part in read_blocks(cache, blocks))
        outputs.append(attend(queries, keys, values, _visible(len(queries), end, spec.window, q.device), spec, sinks))
    return torch.cat(outputs)


@operation
def encoder_attention(q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout, spec: GQA) -> Tensor:
    """Whole texts, no cache: every token sees every token of its own text."""
    texts = zip(*(torch.split(part, layout.lengths) for part in (q, k, v)))
    return torch.cat([attend(queries, keys, values, None, spec, None) for queries, keys, values in texts])


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, spec: GQA, sinks: Tensor | None) -> Tensor:
    """Attention of q [queries, heads, head_dim] to k and v [keys, kv_heads, head_dim]; `visible` is [queries, keys]."""
    group = spec.num_heads // spec.num_kv_heads
    keys, values = (part.float().repeat_interleave(group, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.logit_softcap is not None:
        scores = spec.logit_softcap * torch.tanh(scores / spec.logit_softcap)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, len(q), 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def read_blocks(cache: AnyCache, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of some blocks, [blocks, block_size, kv_heads, head_dim]."""
    keys, values = cache.keys[blocks], cache.values[blocks]
    if isinstance(cache, ScaledCache):
        scales = (cache.key_scales[blocks].unsqueeze(-1), cache.value_scales[blocks].unsqueeze(-1))
        return keys * scales[0], values * scales[1]
    return keys, values


def _visible(num_queries: int, context: int, window: int | None, device: torch.device) -> Tensor:
    query = torch.arange(context - num_queries, context, device=device)[:, None]
    key = torch.arange(context, device=device)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
