"""Mixtures of experts without asking the host who was chosen.

A pair is a token and one expert chosen for it; pair p belongs to token p // num_active.

    few tokens    each pair reads its expert's matrices by itself, at the speed they can be read; two launches
    many tokens   pairs are sorted by expert and cut into tiles of one expert each; every tile is a matrix product

The number of tiles depends on the choices, so as many are launched as there could be, and those left over end at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import MoE
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.moe import Experts, Groups, mix_experts, route
from penstock.runtime.ops.triton.activation import KINDS, activated
from penstock.runtime.ops.triton.grouped.sorting import sort_pairs
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of

MAX_EXPERTS = 256
MAX_SINGLE_TOKENS = 4
"""Tokens up to which pairs read matrices by themselves, sharing them through the cache where they chose alike."""


@entry
@triton.jit
def _route(
    scores, weights, chosen, num_experts,
    PAD: tl.constexpr, ACTIVE: tl.constexpr, ACTIVE_PAD: tl.constexpr, NORMALIZE: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """One token: the best expert, taken out, as often as experts are active. Of equals the first."""
    await_others(CHAINS)
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, PAD)
    there = experts < num_experts
    left = tl.load(scores + token * num_experts + experts, mask=there, other=float("-inf")).to(tl.float32)
    highest = tl.max(left, axis=0)
    mass = tl.sum(tl.exp(left - highest), axis=0)  # NaN where a score is: so is every weight of the token
    places = tl.arange(0, ACTIVE_PAD)
    best = tl.full([ACTIVE_PAD], float("-inf"), tl.float32)
    numbers = tl.zeros([ACTIVE_PAD], tl.int32)
    for place in tl.static_range(ACTIVE):
        score = tl.max(left, axis=0)
        number = tl.min(tl.where((left == score) & there, experts, num_experts - 1), axis=0)
        best = tl.where(places == place, score, best)
        numbers = tl.where(places == place, number, numbers)
        left = tl.where(experts == number, float("-inf"), left)
    shares = tl.exp(best - highest) / mass
    if NORMALIZE:
        shares = shares / tl.sum(shares, axis=0)
    target = token * ACTIVE + places
    tl.store(weights + target, shares, mask=places < ACTIVE)
    tl.store(chosen + target, numbers.to(tl.int64), mask=places < ACTIVE)


@entry
@triton.jit
def _gate_pair(
    x, chosen, gate_up, bias, out,
    ACTIVE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of one pair between its expert's two products. Pairs lie next to each other in the launch."""
    await_others(CHAINS)
    pair = tl.program_id(0)
    expert = tl.load(chosen + pair).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    start = gate_up + (expert * 2 * WIDTH + tl.minimum(rows, WIDTH - 1))[:, None] * SIZE
    source = x + (pair // ACTIVE).to(tl.int64) * SIZE
    gates = tl.zeros([ROWS, BLOCK], tl.float32)
    ups = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < SIZE
        place = start + columns[None, :]
        first = tl.load(place, mask=inside[None, :], other=0.0)
        second = tl.load(place + WIDTH * SIZE, mask=inside[None, :], other=0.0)
        numbers = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        gates += first.to(tl.float32) * numbers
        ups += second.to(tl.float32) * numbers
    gate = tl.sum(gates, axis=1)
    up = tl.sum(ups, axis=1)
    if BIAS:
        lean = bias + expert * 2 * WIDTH + rows
        gate += tl.load(lean, mask=rows < WIDTH, other=0.0).to(tl.float32)
        up += tl.load(lean + WIDTH, mask=rows < WIDTH, other=0.0).to(tl.float32)
    value = activated(gate, up, KIND, CLAMP, SHARPNESS)
    tl.store(out + pair.to(tl.int64) * WIDTH + rows, value.to(out.dtype.element_ty), mask=rows < WIDTH)


@entry
@triton.jit
def _down_token(
    inner, weights, chosen, down, bias, out,
    ACTIVE: tl.constexpr, ACTIVE_PAD: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of one token: what each of its experts makes of its inner numbers, weighed and summed.

    Choices were made before the launch before this one began: the first pieces of the matrices are on their way at once.
    """
    token = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, SIZE - 1)
    columns = tl.arange(0, BLOCK)
    places = tl.arange(0, ACTIVE_PAD)
    pairs = token * ACTIVE + tl.minimum(places, ACTIVE - 1)
    experts = tl.load(chosen + pairs).to(tl.int64)
    matrices = down + (experts[:, None] * SIZE + bounded[None, :])[:, :, None] * WIDTH + columns[None, None, :]
    matrix = tl.load(matrices, mask=(columns < WIDTH)[None, None, :], other=0.0)
    await_others(CHAINS)
    shares = tl.where(places < ACTIVE, tl.load(weights + pairs), 0.0)
    sources = inner + pairs.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    numbers = tl.load(sources, mask=(columns < WIDTH)[None, :], other=0.0).to(tl.float32) * shares[:, None]
    total = matrix.to(tl.float32) * numbers[:, None, :]
    for begin in range(BLOCK, WIDTH, BLOCK):
        inside = begin + columns < WIDTH
        matrix = tl.load(matrices + begin, mask=inside[None, None, :], other=0.0)
        numbers = tl.load(sources + begin, mask=inside[None, :], other=0.0).to(tl.float32) * shares[:, None]
        total += matrix.to(tl.float32) * numbers[:, None, :]
    value = tl.sum(tl.sum(total, axis=2), axis=0)
    if BIAS:
        leans = tl.load(bias + experts[:, None] * SIZE + bounded[None, :]).to(tl.float32)
        value += tl.sum(leans * shares[:, None], axis=0)
    tl.store(out + token.to(tl.int64) * SIZE + rows, value.to(out.dtype.element_ty), mask=rows < SIZE)


@entry
@triton.jit
def _gate_tile(
    x, order, tiles, gate_up, bias, out,
    ACTIVE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """One tile of pairs, ROWS numbers between the two products. Pairs past the tile's end repeat its last one."""
    await_others(CHAINS)
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert < 0:
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, PAIRS)
    pairs = tl.load(order + tl.minimum(sorted_at, end - 1))
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    source = x + (pairs // ACTIVE).to(tl.int64)[:, None] * SIZE + columns[None, :]
    matrix = gate_up + (expert * 2 * WIDTH + tl.minimum(rows, WIDTH - 1))[None, :] * SIZE + columns[:, None]
    gates = tl.zeros([PAIRS, ROWS], tl.float32)
    ups = tl.zeros([PAIRS, ROWS], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        if EVEN:
            numbers = tl.load(source + begin)
            first = tl.load(matrix + begin)
            second = tl.load(matrix + begin + WIDTH * SIZE)
        else:
            inside = columns + begin < SIZE
            numbers = tl.load(source + begin, mask=inside[None, :], other=0.0)
            first = tl.load(matrix + begin, mask=inside[:, None], other=0.0)
            second = tl.load(matrix + begin + WIDTH * SIZE, mask=inside[:, None], other=0.0)
        gates = tl.dot(numbers, first, gates, input_precision="ieee")
        ups = tl.dot(numbers, second, ups, input_precision="ieee")
    if BIAS:
        lean = bias + expert * 2 * WIDTH + rows
        gates += tl.load(lean, mask=rows < WIDTH, other=0.0).to(tl.float32)[None, :]
        ups += tl.load(lean + WIDTH, mask=rows < WIDTH, other=0.0).to(tl.float32)[None, :]
    value = activated(gates, ups, KIND, CLAMP, SHARPNESS)
    target = out + sorted_at.to(tl.int64)[:, None] * WIDTH + rows[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=(sorted_at < end)[:, None] & (rows < WIDTH)[None, :])


@entry
@triton.jit
def _down_tile(
    inner, order, tiles, down, bias, out,
    SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """One tile of pairs, ROWS numbers of what their expert makes of them, laid down in the order of tokens."""
    await_others(CHAINS)
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert < 0:
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, PAIRS)
    bounded = tl.minimum(sorted_at, end - 1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    source = inner + bounded.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    matrix = down + (expert * SIZE + tl.minimum(rows, SIZE - 1))[None, :] * WIDTH + columns[:, None]
    total = tl.zeros([PAIRS, ROWS], tl.float32)
    for begin in range(0, WIDTH, BLOCK):
        if EVEN:
            numbers = tl.load(source + begin)
            part = tl.load(matrix + begin)
        else:
            inside = columns + begin < WIDTH
            numbers = tl.load(source + begin, mask=inside[None, :], other=0.0)
            part = tl.load(matrix + begin, mask=inside[:, None], other=0.0)
        total = tl.dot(numbers, part, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + expert * SIZE + rows, mask=rows < SIZE, other=0.0).to(tl.float32)[None, :]
    pairs = tl.load(order + bounded).to(tl.int64)
    target = out + pairs[:, None] * SIZE + rows[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(sorted_at < end)[:, None] & (rows < SIZE)[None, :])


@entry
@triton.jit
def _weigh(made, weights, out, SIZE: tl.constexpr, ACTIVE: tl.constexpr, BLOCK: tl.constexpr, CHAINS: tl.constexpr):
    """The weighted sum of what a token's experts made."""
    await_others(CHAINS)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(ACTIVE):
        pair = token * ACTIVE + place
        part = tl.load(made + pair * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    tl.store(out + token * SIZE + columns, total.to(out.dtype.element_ty), mask=inside)


@route.kernel("cuda", fits=lambda scores, spec: scores.is_contiguous() and 0 < scores.shape[-1] <= MAX_EXPERTS)
def route_tokens(scores: Tensor, spec: MoE) -> tuple[Tensor, Tensor]:
    num_tokens, num_experts = scores.shape
    weights = torch.empty((num_tokens, spec.num_active), device=scores.device)
    chosen = torch.empty((num_tokens, spec.num_active), dtype=torch.int64, device=scores.device)
    if num_tokens:
        _route[(num_tokens,)](
            scores, weights, chosen, num_experts,
            PAD=triton.next_power_of_2(num_experts), ACTIVE=spec.num_active,
            ACTIVE_PAD=triton.next_power_of_2(spec.num_active), NORMALIZE=spec.normalize, **chained(), num_warps=1,
        )  # fmt: skip
    return weights, chosen


def gate_pairs(x: Tensor, chosen: Tensor, experts: Experts, spec: MoE, config: TileConfig) -> Tensor:
    """Each pair's numbers between its expert's two products, [pairs, width]."""
    (num_tokens, size), width, active = x.shape, spec.expert.width, spec.num_active
    inner = torch.empty((num_tokens * active, width), dtype=x.dtype, device=x.device)
    _gate_pair[(num_tokens * active, triton.cdiv(width, config.rows))](
        x, chosen, experts.gate_up, _or(experts.gate_up_bias, x), inner,
        ACTIVE=active, SIZE=size, WIDTH=width, ROWS=config.rows, BLOCK=min(config.block, triton.next_power_of_2(size)),
        BIAS=experts.gate_up_bias is not None, **_activation(spec), **chained(), num_warps=config.warps,
    )  # fmt: skip
    return inner


def down_tokens(
    inner: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE, config: TileConfig
) -> Tensor:
    """The weighted sum over each token's pairs, [tokens, hidden]."""
    num_tokens, (size, width) = len(weights), experts.down.shape[1:]
    out = torch.empty((num_tokens, size), dtype=inner.dtype, device=inner.device)
    _down_token[(num_tokens, triton.cdiv(size, config.rows))](
        inner, weights, chosen, experts.down, _or(experts.down_bias, inner), out,
        ACTIVE=spec.num_active, ACTIVE_PAD=triton.next_power_of_2(spec.num_active), SIZE=size, WIDTH=width,
        ROWS=config.rows, BLOCK=min(config.block, triton.next_power_of_2(width)),
        BIAS=experts.down_bias is not None, **chained(), num_warps=config.warps,
    )  # fmt: skip
    return out


def gate_tiles(x: Tensor, groups: Groups, experts: Experts, spec: MoE, tile: int, config: TileConfig) -> Tensor:
    """Each pair's numbers between its expert's two products, [pairs, width], in the order of experts."""
    size, width = x.shape[1], spec.expert.width
    inner = torch.empty((len(groups.order), width), dtype=x.dtype, device=x.device)
    block = _block(config, size)
    _gate_tile[(triton.cdiv(width, config.rows), len(groups.tiles))](
        x, groups.order, groups.tiles, experts.gate_up, _or(experts.gate_up_bias, x), inner,
        ACTIVE=spec.num_active, SIZE=size, WIDTH=width, PAIRS=tile, ROWS=config.rows, BLOCK=block, EVEN=size % block == 0,
        BIAS=experts.gate_up_bias is not None, **_activation(spec), **chained(),
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return inner


def down_tiles(inner: Tensor, groups: Groups, experts: Experts, tile: int, config: TileConfig) -> Tensor:
    """What each pair's expert makes of it, [pairs, hidden], in the order of tokens."""
    size, width = experts.down.shape[1:]
    made = torch.empty((len(groups.order), size), dtype=inner.dtype, device=inner.device)
    block = _block(config, width)
    _down_tile[(triton.cdiv(size, config.rows), len(groups.tiles))](
        inner, groups.order, groups.tiles, experts.down, _or(experts.down_bias, inner), made,
        SIZE=size, WIDTH=width, PAIRS=tile, ROWS=config.rows, BLOCK=block, EVEN=width % block == 0,
        BIAS=experts.down_bias is not None, **chained(), num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return made


def weigh(made: Tensor, weights: Tensor) -> Tensor:
    (num_tokens, active), size = weights.shape, made.shape[1]
    out = torch.empty((num_tokens, size), dtype=made.dtype, device=made.device)
    block = min(triton.next_power_of_2(size), 1024)
    _weigh[(num_tokens, triton.cdiv(size, block))](
        made, weights, out, SIZE=size, ACTIVE=active, BLOCK=block, **chained(), num_warps=4
    )
    return out


def tile_configs(x: Tensor, spec: MoE) -> tuple[int, TileConfig, TileConfig]:
    """Pairs a tile, and the tiles of both products."""
    pairs_of_expert = x.shape[0] * spec.num_active / spec.num_experts
    shape = {"num_rows": pairs_of_expert, "value_bytes": x.element_size()}
    pairs = next((most for most, few in ((16, 8), (32, 16), (64, 64)) if pairs_of_expert <= few), 128)
    pairs = 16 if x.element_size() > 2 else pairs  # float32 takes twice the room
    return pairs, tiles_of("expert tiles gate", **shape), tiles_of("expert tiles down", **shape)


def _fits(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> bool:
    tensors = (x, weights, chosen, *experts)
    return x.shape[0] > 0 and all(each is None or each.is_contiguous() for each in tensors)


def _fits_singles(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> bool:
    return x.shape[0] <= MAX_SINGLE_TOKENS and _fits(x, weights, chosen, experts, spec)


@mix_experts.kernel("cuda", fits=_fits_singles)
def mix_by_pairs(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
    inner = gate_pairs(x, chosen, experts, spec, tiles_of("expert pairs"))
    return down_tokens(inner, weights, chosen, experts, spec, tiles_of("expert sums", num_rows=len(x)))


@mix_experts.kernel("cuda", fits=_fits)
def mix_by_tiles(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
    tile, gate, down = tile_configs(x, spec)
    groups = sort_pairs(chosen, spec.num_experts, tile)
    inner = gate_tiles(x, groups, experts, spec, tile, gate)
    return weigh(down_tiles(inner, groups, experts, tile, down), weights)


def _block(config: TileConfig, size: int) -> int:
    return max(min(config.block, 1 << (size - 1).bit_length()), 16)


def _or(bias: Tensor | None, instead: Tensor) -> Tensor:
    return instead if bias is None else bias


def _activation(spec: MoE) -> dict[str, int | float]:
    return {"KIND": KINDS[spec.expert.activation], "CLAMP": CLAMP, "SHARPNESS": SHARPNESS}
