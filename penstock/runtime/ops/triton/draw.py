"""Drawing in two launches that read the scores once: sums of tiles, then the tile and the place in it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.sampling.whole import DrawKeys, draw_whole
from penstock.runtime.ops.triton.host.launch import entry

TILE = 4096


@entry
@triton.jit(
    do_not_specialize=["num_tiles"], do_not_specialize_on_alignment=["rows", "temperature", "peaks", "places", "sums"]
)
def _sum_tiles(
    logits, rows, temperature, peaks, places, sums, width, num_tiles, INDEXED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """For each tile: its highest score, where that is, and the sum of weights relative to it."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    columns = tile * TILE + tl.arange(0, TILE)
    scores = tl.load(logits + row.to(tl.int64) * width + columns, mask=columns < width, other=float("-inf"))
    scores = scores.to(tl.float32)
    heat = tl.load(temperature + (tl.load(rows + row) if INDEXED else row))
    heat = tl.where(heat == 0.0, 1.0, heat)
    peak = tl.max(scores, axis=0)
    weights = tl.exp((scores - peak) / heat)
    out = row * num_tiles + tile
    tl.store(peaks + out, peak)
    tl.store(places + out, tile * TILE + tl.argmax(scores, axis=0))
    # A score that is NaN or +inf makes the sum NaN, whatever the peak: that is how the row is known to be ruined.
    tl.store(sums + out, tl.sum(weights, axis=0))


@triton.jit
def _mixed(state):
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def uniform_at(seed, choice, position):
    """The number `ops.sampling.uniform` gives for this key, rounded to float32."""
    golden = 0x9E3779B97F4A7C15
    state = _mixed(seed.to(tl.uint64) + golden)
    state = _mixed(state ^ (choice.to(tl.uint64) + golden))
    state = _mixed(state ^ (position.to(tl.uint64) + golden))
    return (state >> 11).to(tl.float64) * 1.1102230246251565e-16


@entry
@triton.jit(
    do_not_specialize_on_alignment=[
        "rows", "temperature", "seeds", "choices", "positions", "peaks", "places", "sums", "out",
    ]
)  # fmt: skip
def _pick(
    logits, rows, temperature, seeds, choices, positions, peaks, places, sums, out, width,
    NUM_TILES: tl.constexpr, INDEXED: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    whose = tl.load(rows + row) if INDEXED else row
    heat = tl.load(temperature + whose)
    tiles = tl.arange(0, PAD)
    there = tiles < NUM_TILES
    peak = tl.load(peaks + row * NUM_TILES + tiles, mask=there, other=float("-inf"))
    highest = tl.max(peak, axis=0)
    warm = tl.where(heat == 0.0, 1.0, heat)
    mass = tl.load(sums + row * NUM_TILES + tiles, mask=there, other=0.0)
    shares = mass * tl.exp((peak - highest) / warm)
    shares = tl.where(mass == 0.0, 0.0, shares)
    total = tl.sum(shares, axis=0)
    if heat == 0.0:
        token = tl.load(places + row * NUM_TILES + tl.argmax(peak, axis=0)).to(tl.int64)
    else:
        number = uniform_at(tl.load(seeds + whose), tl.load(choices + whose), tl.load(positions + row))
        target = (number * total).to(tl.float32)
        until = tl.cumsum(shares, axis=0)
        tile = tl.min(tl.where((until > target) & there & (shares > 0.0), tiles, PAD), axis=0)
        last = tl.max(tl.where(there & (shares > 0.0), tiles, 0), axis=0)
        tile = tl.minimum(tile, last)
        before = tl.sum(tl.where(tiles < tile, shares, 0.0), axis=0)
        columns = tile * TILE + tl.arange(0, TILE)
        scores = tl.load(logits + row.to(tl.int64) * width + columns, mask=columns < width, other=float("-inf"))
        scores = scores.to(tl.float32)
        weights = tl.exp((scores - highest) / warm)
        passed = tl.cumsum(weights, axis=0) + before > target
        first = tl.min(tl.where(passed & (weights > 0.0), columns, width), axis=0)
        final = tl.max(tl.where(weights > 0.0, columns, 0), axis=0)
        token = tl.minimum(first, final).to(tl.int64)
    is_finite = (total == total) & (tl.abs(highest) != float("inf"))
    tl.store(out + row, tl.where(is_finite, token, -1))


@draw_whole.kernel("cuda", fits=lambda logits, *rest: logits.is_contiguous())
def draw_by_tiles(logits: Tensor, temperature: Tensor, keys: DrawKeys) -> Tensor:
    return draw_for_rows(logits, None, temperature, keys)


def draw_for_rows(logits: Tensor, rows: Tensor | None, temperature: Tensor, keys: DrawKeys) -> Tensor:
    """The same, where temperatures, seeds and choices stand by row, and `rows` says whose a row of scores is."""
    num_rows, width = logits.shape
    num_tiles = triton.cdiv(width, TILE)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    peaks, sums = torch.empty((2, num_rows, num_tiles), device=logits.device)
    places = torch.empty((num_rows, num_tiles), dtype=torch.int32, device=logits.device)
    whose = keys.position if rows is None else rows
    how = {"INDEXED": rows is not None, "TILE": TILE, "num_warps": 8}
    _sum_tiles[(num_rows, num_tiles)](logits, whose, temperature, peaks, places, sums, width, num_tiles, **how)
    _pick[(num_rows,)](
        logits, whose, temperature, *keys, peaks, places, sums, out, width,
        NUM_TILES=num_tiles, PAD=triton.next_power_of_2(num_tiles), **how,
    )  # fmt: skip
    return out
