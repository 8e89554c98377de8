"""Pairs of a token and an expert sorted by expert, on the device, in one launch or two.

A pair's place is: pairs of experts before its own + pairs of its own expert before it. Programs count those themselves; over
many pairs a first launch counts by chunk. Nothing is added atomically, so the order is the same every time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.ops.moe import Groups, group_pairs, max_tiles

RUN = 64
"""Pairs a program places, and tiles it writes down."""
CHUNK = 512
"""Pairs a program of the first launch counts."""
MAX_SINGLE_LAUNCH = 512
"""Pairs up to which every program counts all of them."""


@triton.jit
def _counted(chosen, begin, end, experts, PAD: tl.constexpr, RUN: tl.constexpr):
    """How many of the pairs begin .. end chose each expert."""
    seen = tl.zeros([RUN, PAD], tl.int32)
    for at in range(begin, end, RUN):
        pairs = at + tl.arange(0, RUN)
        expert = tl.load(chosen + pairs, mask=pairs < end, other=-1).to(tl.int32)
        seen += (expert[:, None] == experts[None, :]).to(tl.int32)
    return tl.sum(seen, axis=0)


@triton.jit(do_not_specialize=["num_pairs"])
def _count(chosen, counts, num_pairs, PAD: tl.constexpr, CHUNK: tl.constexpr, RUN: tl.constexpr):
    chunk = tl.program_id(0)
    experts = tl.arange(0, PAD)
    begin = chunk * CHUNK
    found = _counted(chosen, begin, tl.minimum(begin + CHUNK, num_pairs), experts, PAD, RUN)
    tl.store(counts + chunk * PAD + experts, found)


@triton.jit
def _summed(counts, begin, end, experts, PAD: tl.constexpr):
    """The counts of chunks begin .. end."""
    seen = tl.zeros([16, PAD], tl.int32)
    for at in range(begin, end, 16):
        chunks = at + tl.arange(0, 16)
        seen += tl.load(counts + chunks[:, None] * PAD + experts[None, :], mask=(chunks < end)[:, None], other=0)
    return tl.sum(seen, axis=0)


@triton.jit(do_not_specialize=["num_pairs", "num_chunks", "most_tiles"])
def _place(
    chosen, counts, order, tiles, num_pairs, num_chunks, most_tiles,
    PAD: tl.constexpr, CHUNK: tl.constexpr, RUN: tl.constexpr, TILE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """One run of pairs is placed, and one run of tiles written down."""
    run = tl.program_id(0)
    experts = tl.arange(0, PAD)
    begin = tl.minimum(run * RUN, num_pairs)
    if COUNTED:
        chunk = begin // CHUNK
        before = _summed(counts, 0, chunk, experts, PAD)
        of_all = before + _summed(counts, chunk, num_chunks, experts, PAD)
        before += _counted(chosen, chunk * CHUNK, begin, experts, PAD, RUN)
    else:
        before = _counted(chosen, 0, begin, experts, PAD, RUN)
        of_all = before + _counted(chosen, begin, num_pairs, experts, PAD, RUN)
    firsts = tl.cumsum(of_all, axis=0) - of_all

    pairs = run * RUN + tl.arange(0, RUN)
    inside = pairs < num_pairs
    expert = tl.load(chosen + pairs, mask=inside, other=-1).to(tl.int32)
    others = run * RUN + tl.arange(0, RUN)
    other = tl.load(chosen + others, mask=others < num_pairs, other=-1).to(tl.int32)
    is_before = (other[None, :] == expert[:, None]) & (others[None, :] < pairs[:, None])
    base = tl.where(expert[:, None] == experts[None, :], (firsts + before)[None, :], 0)
    place = tl.sum(base, axis=1) + tl.sum(is_before.to(tl.int32), axis=1)
    tl.store(order + place, pairs, mask=inside)

    tiles_of = (of_all + TILE - 1) // TILE
    ends = tl.cumsum(tiles_of, axis=0)
    numbers = run * RUN + tl.arange(0, RUN)
    owner = tl.sum((ends[None, :] <= numbers[:, None]).to(tl.int32), axis=1)  # PAD past the last tile
    is_owner = owner[:, None] == experts[None, :]
    first = tl.sum(tl.where(is_owner, firsts[None, :], 0), axis=1)
    end = first + tl.sum(tl.where(is_owner, of_all[None, :], 0), axis=1)
    start = first + (numbers - tl.sum(tl.where(is_owner, (ends - tiles_of)[None, :], 0), axis=1)) * TILE
    target = tiles + numbers * 3
    is_written = numbers < most_tiles
    tl.store(target, tl.where(owner < PAD, owner, -1), mask=is_written)
    tl.store(target + 1, tl.where(owner < PAD, start, 0), mask=is_written)
    tl.store(target + 2, tl.where(owner < PAD, tl.minimum(start + TILE, end), 0), mask=is_written)


@group_pairs.kernel("cuda", fits=lambda chosen, *rest: chosen.is_contiguous() and chosen.numel() > 0)
def sort_pairs(chosen: Tensor, num_experts: int, tile: int) -> Groups:
    num_pairs = chosen.numel()
    most_tiles = max_tiles(num_pairs, num_experts, tile)
    num_chunks = triton.cdiv(num_pairs, CHUNK)
    pad = max(triton.next_power_of_2(num_experts), 16)
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    tiles = torch.empty((most_tiles, 3), dtype=torch.int32, device=chosen.device)
    is_counted = num_pairs > MAX_SINGLE_LAUNCH
    counts = torch.empty((num_chunks if is_counted else 0, pad), dtype=torch.int32, device=chosen.device)
    if is_counted:
        _count[(num_chunks,)](chosen, counts, num_pairs, PAD=pad, CHUNK=CHUNK, RUN=RUN, num_warps=8)
    _place[(triton.cdiv(max(num_pairs, most_tiles), RUN),)](
        chosen, counts, order, tiles, num_pairs, num_chunks, most_tiles,
        PAD=pad, CHUNK=CHUNK, RUN=RUN, TILE=tile, COUNTED=is_counted, num_warps=16,
    )  # fmt: skip
    return Groups(order, tiles)
