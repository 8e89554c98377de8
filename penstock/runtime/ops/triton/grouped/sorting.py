"""Pairs of a token and an expert sorted by expert, on the device, in one launch.

An expert is a program: it counts the pairs of experts before it, then places its own one after the other. Nothing is added
atomically, so the order is the same every time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.moe import Groups, group_pairs, max_tiles
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry

MAX_RUN = 4096
"""Pairs a program looks at at once."""
MAX_TILES_AT_ONCE = 64


@entry
@triton.jit(do_not_specialize=["num_pairs"])
def _sort(
    chosen, order, tiles, num_pairs,
    RUN: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    await_others(CHAINS)
    expert = tl.program_id(0)
    num_before = 0
    num_ours = 0
    for begin in range(0, num_pairs, RUN):
        pairs = begin + tl.arange(0, RUN)
        owner = tl.load(chosen + pairs, mask=pairs < num_pairs, other=2**31 - 1).to(tl.int32)
        num_before += tl.sum((owner < expert).to(tl.int32), axis=0)
        num_ours += tl.sum((owner == expert).to(tl.int32), axis=0)
    place = num_before
    for begin in range(0, num_pairs, RUN):
        pairs = begin + tl.arange(0, RUN)
        owner = tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
        is_ours = (owner == expert).to(tl.int32)
        ranks = tl.cumsum(is_ours, axis=0)
        tl.store(order + place + ranks - 1, pairs, mask=is_ours != 0)
        place += tl.sum(is_ours, axis=0)
    # Ours are the slots up to the next expert's first; those we do not need say so.
    end = num_before + num_ours
    first_slot = num_before // TILE + expert
    for slot in range(first_slot, end // TILE + expert + 1, TILES):
        slots = slot + tl.arange(0, TILES)
        start = num_before + (slots - first_slot) * TILE
        is_tile = start < end
        target = tiles + slots * 3
        inside = slots <= end // TILE + expert
        tl.store(target, tl.where(is_tile, expert, -1), mask=inside)
        tl.store(target + 1, tl.where(is_tile, start, 0), mask=inside)
        tl.store(target + 2, tl.where(is_tile, tl.minimum(start + TILE, end), 0), mask=inside)


@group_pairs.kernel("cuda", fits=lambda chosen, *rest: chosen.is_contiguous() and chosen.numel() > 0)
def sort_pairs(chosen: Tensor, num_experts: int, tile: int) -> Groups:
    num_pairs = chosen.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    tiles = torch.empty((max_tiles(num_pairs, num_experts, tile), 3), dtype=torch.int32, device=chosen.device)
    run = min(max(triton.next_power_of_2(num_pairs), 32), MAX_RUN)
    _sort[(num_experts,)](
        chosen, order, tiles, num_pairs,
        RUN=run, TILE=tile, TILES=MAX_TILES_AT_ONCE, **chained(), num_warps=4 if run <= 1024 else 8,
    )  # fmt: skip
    return Groups(order, tiles)
