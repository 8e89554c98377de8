"""Paged attention on a CPU: short chunks of one length and like context in one call, long chunks in one call each.

What depends on the step alone (which slots are read, what is visible) is worked out in its first layer and kept in the
layout. Padding repeats a sequence's own first key, so a number that is not finite stays with the sequence that made it.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention, encoder_attention
from penstock.runtime.ops.layout import AnyCache, BatchLayout

MAX_PAIRS = 1 << 22
"""Most pairs of a query and a key in one call that needs a mask of what is visible."""
MAX_KEPT_PAIRS = 1 << 26
"""Runs with more pairs than this build their mask again in every layer instead of keeping it."""
MAX_PADDING = 1.25
"""Longest over shortest context of the chunks read as one rectangle."""
MAX_GROUPED = 16
"""Queries of the longest chunk that is grouped with others: decodes, and decodes with drafts."""


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Chunks of `length` queries each, whose keys are read as one rectangle [members, num_keys]."""

    tokens: Tensor
    length: int
    slots: Tensor
    num_keys: int
    hidden: Tensor | None
    """[members, 1, length, num_keys], 0 or -inf; None when every query sees every key."""


@dataclass(frozen=True, slots=True)
class QueryRun:
    """The queries of one chunk, flattened tokens begin .. end, and the keys of positions first_key .. context.

    positions   0 .... first_key ............ context
                       [ keys                       ]
                                     [ queries      ]
    """

    begin: int
    end: int
    slots: Tensor
    first_key: int
    context: int
    window: int | None
    kept: dict[int, Tensor] = field(default_factory=dict)

    @property
    def num_keys(self) -> int:
        return self.context - self.first_key

    @property
    def is_plainly_causal(self) -> bool:
        return self.end - self.begin == self.num_keys and (self.window is None or self.num_keys <= self.window)

    def visible(self, low: int, high: int) -> Tensor:
        """What the queries low .. high of the run see, [queries, num_keys]."""
        mask = self.kept.get(low)
        if mask is None:
            start = self.context - (self.end - self.begin)
            query = torch.arange(start + low, start + high)[:, None]
            key = torch.arange(self.first_key, self.context)[None, :]
            mask = key <= query
            if self.window is not None:
                mask &= key > query - self.window
            if (self.end - self.begin) * self.num_keys <= MAX_KEPT_PAIRS:
                self.kept[low] = mask
        return mask


@attention.kernel("cpu", fits=lambda q, cache, *rest: cache.keys.dtype == q.dtype)
def grouped_attention(q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None) -> Tensor:
    key = ("cpu attention", spec.window, cache.block_size)
    plan = layout.derived.get(key)
    if plan is None:
        plan = layout.derived[key] = _plan(layout, spec.window, cache.block_size)
    keys, values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
    output = torch.empty_like(q)
    for part in plan:
        part_keys, part_values = keys.index_select(0, part.slots), values.index_select(0, part.slots)
        if isinstance(part, QueryRun):
            output[part.begin : part.end] = _attend_run(
                q[part.begin : part.end], part_keys, part_values, part, spec, sinks
            )
        else:
            members = _attend_group(q.index_select(0, part.tokens), part_keys, part_values, part, spec, sinks)
            output.index_copy_(0, part.tokens, members)
    return output


@encoder_attention.kernel("cpu")
def padded_encoder_attention(q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout, spec: GQA) -> Tensor:
    plan = layout.derived.get("cpu encoder attention")
    if plan is None:
        plan = layout.derived["cpu encoder attention"] = [_pad(texts, layout) for texts in _alike_texts(layout)]
    output = torch.empty_like(q)
    for group in plan:
        parts = (part.index_select(0, group.slots).view(-1, group.num_keys, *part.shape[1:]) for part in (q, k, v))
        queries, keys, values = (part.transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=group.hidden, scale=spec.scale, enable_gqa=True
        )
        # Padding stands on a text's first token, query and all, so it writes what that token writes.
        output.index_copy_(0, group.slots, attended.transpose(1, 2).flatten(0, 1))
    return output


def _alike_texts(layout: BatchLayout) -> list[list[int]]:
    groups: list[list[int]] = []
    for text in sorted(range(len(layout.lengths)), key=layout.lengths.__getitem__):
        if groups and layout.lengths[text] <= layout.lengths[groups[-1][0]] * MAX_PADDING + 2:
            groups[-1].append(text)
        else:
            groups.append([text])
    return groups


def _pad(texts: list[int], layout: BatchLayout) -> QueryGroup:
    lengths = torch.tensor([layout.lengths[text] for text in texts])
    begins = layout.query_starts.index_select(0, torch.tensor(texts)).long()
    most = int(lengths.max())
    column = torch.arange(most)[None, :]
    is_token = column < lengths[:, None]
    tokens = (begins[:, None] + torch.where(is_token, column, 0)).flatten()
    hidden = None if bool(is_token.all()) else torch.zeros(is_token.shape).masked_fill_(~is_token, -torch.inf)
    return QueryGroup(tokens, most, tokens, most, None if hidden is None else hidden[:, None, None])


def _attend_group(
    q: Tensor, keys: Tensor, values: Tensor, group: QueryGroup, spec: GQA, sinks: Tensor | None
) -> Tensor:
    """The query heads that share a kv head stand as that head's queries, so nothing is repeated."""
    members = len(q) // group.length
    heads_of_kv = spec.num_heads // spec.num_kv_heads
    queries = q.view(members, group.length, spec.num_kv_heads, heads_of_kv, spec.head_dim).permute(0, 2, 3, 1, 4)
    keys, values = (part.view(members, group.num_keys, *part.shape[1:]).transpose(1, 2) for part in (keys, values))
    if spec.logit_softcap is None and sinks is None:
        hidden = group.hidden
        if hidden is not None and group.length > 1:
            hidden = hidden.repeat(1, 1, heads_of_kv, 1)
        attended = functional.scaled_dot_product_attention(
            queries.flatten(2, 3), keys, values, attn_mask=hidden, scale=spec.scale
        )
        attended = attended.view(members, spec.num_kv_heads, heads_of_kv, group.length, spec.head_dim)
    else:
        hidden = None if group.hidden is None else group.hidden.unsqueeze(2)
        attended = _attend(queries, keys, values, hidden, spec, sinks)
    return attended.permute(0, 3, 1, 2, 4).reshape(q.shape)


def _attend_run(q: Tensor, keys: Tensor, values: Tensor, run: QueryRun, spec: GQA, sinks: Tensor | None) -> Tensor:
    queries, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (q, keys, values))
    is_plain = spec.logit_softcap is None and sinks is None
    if is_plain and run.is_plainly_causal:
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=spec.scale, enable_gqa=True
        )
        return attended.squeeze(0).transpose(0, 1)
    pieces = []
    rows = max(1, MAX_PAIRS // run.num_keys)
    for low in range(0, len(q), rows):
        piece, visible = queries[:, :, low : low + rows], run.visible(low, min(low + rows, len(q)))
        if is_plain:
            attended = functional.scaled_dot_product_attention(
                piece, keys, values, attn_mask=visible, scale=spec.scale, enable_gqa=True
            )
        else:
            hidden = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
            grouped = torch.unflatten(piece, 1, (spec.num_kv_heads, -1))
            attended = _attend(grouped, keys, values, hidden, spec, sinks).flatten(1, 2)
        pieces.append(attended.squeeze(0).transpose(0, 1))
    return torch.cat(pieces)


def _attend(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, spec: GQA, sinks: Tensor | None) -> Tensor:
    """Written out, for what torch's own operator lacks: q [members, kv_heads, group, queries, head_dim]."""
    members, kv_heads, group, queries, _ = q.shape
    scores = q.flatten(2, 3).float() @ keys.transpose(2, 3).float()
    scores = torch.unflatten(scores.mul_(spec.scale), 2, (group, queries))
    if spec.logit_softcap is not None:
        scores = scores.div_(spec.logit_softcap).tanh_().mul_(spec.logit_softcap)
    if hidden is not None:
        scores += hidden
    if sinks is not None:
        columns = sinks.float().view(1, kv_heads, group, 1, 1).expand(members, -1, -1, queries, -1)
        scores = torch.cat((scores, columns), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    return torch.unflatten(weights.flatten(2, 3) @ values.float(), 2, (group, queries)).to(q.dtype)


def _plan(layout: BatchLayout, window: int | None, block_size: int) -> list[QueryGroup | QueryRun]:
    begins = layout.query_starts.tolist()
    parts: list[QueryGroup | QueryRun] = []
    short = []
    for chunk, (length, context) in enumerate(zip(layout.lengths, layout.contexts)):
        if length <= MAX_GROUPED:
            short.append(chunk)
            continue
        first_key = 0 if window is None else max(0, context - length - window + 1)
        slots = _slots(layout.block_tables[chunk], torch.arange(first_key, context), block_size)
        parts.append(QueryRun(begins[chunk], begins[chunk + 1], slots, first_key, context, window))
    for chunks in _alike(short, layout):
        parts.append(_gather(chunks, layout, window, block_size))
    return parts


def _alike(chunks: list[int], layout: BatchLayout) -> list[list[int]]:
    """Chunks of one length and similar context, so that little is padded."""
    groups: list[list[int]] = []
    for chunk in sorted(chunks, key=lambda each: (layout.lengths[each], layout.contexts[each])):
        first = groups[-1][0] if groups else chunk
        is_like = layout.contexts[chunk] <= layout.contexts[first] * MAX_PADDING + 2
        if groups and is_like and layout.lengths[chunk] == layout.lengths[first]:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _gather(chunks: list[int], layout: BatchLayout, window: int | None, block_size: int) -> QueryGroup:
    """
    positions   first_key ....... context - length ....... context
                [ keys                                   ] padding
                                  [ queries              ]
    """
    length = layout.lengths[chunks[0]]
    members = torch.tensor(sorted(chunks))
    contexts = layout.context_lengths.index_select(0, members).long()
    num_keys = contexts if window is None else contexts.clamp(max=window + length - 1)
    first_keys = contexts - num_keys
    most = int(num_keys.max())
    column = torch.arange(most)[None, :]
    is_key = column < num_keys[:, None]
    positions = first_keys[:, None] + torch.where(is_key, column, 0)
    slots = _slots(layout.block_tables.index_select(0, members), positions, block_size)

    query = (contexts - length)[:, None, None] + torch.arange(length)[None, :, None]
    key = positions[:, None, :]
    visible = is_key[:, None, :] & (key <= query)
    if window is not None:
        visible &= key > query - window
    hidden = None
    if not bool(visible.all()):
        hidden = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None]
    first_tokens = layout.query_starts.index_select(0, members).long()
    tokens = (first_tokens[:, None] + torch.arange(length)).flatten()
    return QueryGroup(tokens, length, slots.flatten(), most, hidden)


def _slots(tables: Tensor, positions: Tensor, block_size: int) -> Tensor:
    blocks = tables.long().gather(-1, positions // block_size)
    return blocks * block_size + positions % block_size
