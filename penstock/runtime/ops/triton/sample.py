"""The sampler's kernels: rows that ask for nothing but a temperature are drawn by `draw_for_rows`, the others once more by
the kernels here, whose programs end at once for rows without such settings. So the draw of a row never depends on the
settings of the rows beside it.

No row is sorted. The weight at which top-k or top-p ends is found digit by digit, five bits a launch: each tile counts (or sums
up) its weights by their next digit, and the next launch reads off these which digit it is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.sampling import sample as asked
from penstock.runtime.ops.sampling import whole
from penstock.runtime.ops.sampling.sample import Draws, Needs, SamplingTable, sample
from penstock.runtime.ops.sampling.whole import DrawKeys
from penstock.runtime.ops.triton.draw import draw_for_rows, uniform_at
from penstock.runtime.ops.triton.host.launch import entry

TILE = 4096
LIST_RUN = 1024
HISTORY_RUN = 1024
HISTORY_PROGRAMS = 8
DIGITS = 32
DIGIT_BITS = 5
SHIFTS = tuple(range(25, -1, -DIGIT_BITS))
"""Weights stand in [0, 1]: as bits they take thirty."""

PENALTIES = tl.constexpr(asked.PENALTIES)
BIAS = tl.constexpr(asked.BIAS)
ALLOWED = tl.constexpr(asked.ALLOWED)
STOPS = tl.constexpr(asked.STOPS)
RUNS = tl.constexpr(asked.RUNS)
FILTERS = tl.constexpr(asked.FILTERS)
MASKED = tl.constexpr(asked.MASKED)
ADJUSTS = tl.constexpr(asked.ADJUSTS)
NOTHING_LEFT = tl.constexpr(asked.NOTHING_LEFT)
NOT_DRAWN = tl.constexpr(whole.NOT_DRAWN)


@entry
@triton.jit(do_not_specialize_on_alignment=["rows", "positions", "masks", "active"])
def _note(rows, positions, masks, flags, min_lengths, active):
    """What each row of scores asks for at its position."""
    number = tl.program_id(0)
    row = tl.load(rows + number)
    found = tl.load(flags + row)
    is_early = tl.load(positions + number) + 1 < tl.load(min_lengths + row)
    found = tl.where(is_early, found, found & ~STOPS)
    tl.store(active + number, tl.where(tl.load(masks + number) >= 0, found | MASKED, found))


@triton.jit
def _limit(flags, asked, width):
    """The end of what is read for a row: its width if it asks for that, else nothing."""
    return tl.where((flags & asked) != 0, width, 0)


@entry
@triton.jit(do_not_specialize_on_alignment=["active"])
def _clear(active, counts, width, TILE: tl.constexpr):
    number = tl.program_id(0)
    if (tl.load(active + number) & PENALTIES) != 0:
        columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
        target = counts + number.to(tl.int64) * width + columns
        tl.store(target, tl.zeros((TILE,), tl.int32), mask=columns < width)


@entry
@triton.jit(
    do_not_specialize=["token_width"],
    do_not_specialize_on_alignment=["rows", "positions", "active", "prompt_lengths"],
)
def _count(
    rows, positions, active, tokens, prompt_lengths, counts, width, token_width,
    RUN: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Bit 0 of a token's count says that it stands in the prompt, the others how often it was drawn."""
    number = tl.program_id(0)
    if (tl.load(active + number) & PENALTIES) != 0:
        row = tl.load(rows + number)
        length = tl.load(positions + number) + 1
        prompt_length = tl.load(prompt_lengths + row)
        ours = counts + number.to(tl.int64) * width
        for begin in range(tl.program_id(1) * RUN, length, RUN * PROGRAMS):
            places = begin + tl.arange(0, RUN)
            inside = places < length
            token = tl.load(tokens + row * token_width + places, mask=inside, other=0)
            is_prompt = places < prompt_length
            tl.atomic_or(ours + token, tl.full((RUN,), 1, tl.int32), mask=inside & is_prompt)
            tl.atomic_add(ours + token, tl.full((RUN,), 2, tl.int32), mask=inside & ~is_prompt)


@entry
@triton.jit(
    do_not_specialize=["num_tiles", "num_words"],
    do_not_specialize_on_alignment=[
        "rows", "masks", "active", "repetitions", "presences", "frequencies", "allowed", "bits", "checks",
    ],
)  # fmt: skip
def _adjust(
    scores, rows, masks, active, repetitions, presences, frequencies, allowed, bits, counts, adjusted, checks,
    width, num_tiles, num_words, TILE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    tile = tl.program_id(1)
    flags = tl.load(active + number)
    if (flags & ADJUSTS) != 0:
        row = tl.load(rows + number)
        columns = tile * TILE + tl.arange(0, TILE)
        inside = columns < width
        place = number.to(tl.int64) * width + columns
        values = tl.load(scores + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(checks + number * num_tiles + tile, tl.sum(values, axis=0))
        seen = tl.load(counts + place, mask=columns < _limit(flags, PENALTIES, width), other=0)
        repetition = tl.load(repetitions + row)
        repeated = tl.where(values > 0.0, values / repetition, values * repetition)
        values = tl.where(seen != 0, repeated, values)
        num_drawn = seen >> 1
        values = tl.where(num_drawn > 0, values - tl.load(presences + row), values)
        values -= tl.load(frequencies + row) * num_drawn.to(tl.float32)
        word, bit = columns // 32, columns % 32
        mine = tl.load(allowed + row * num_words + word, mask=columns < _limit(flags, ALLOWED, width), other=-1)
        given = bits + tl.load(masks + number) * num_words + word
        given = tl.load(given, mask=columns < _limit(flags, MASKED, width), other=-1)
        values = tl.where(((mine & given) >> bit) & 1 != 0, values, float("-inf"))
        tl.store(adjusted + place, values, mask=inside)


@entry
@triton.jit(
    do_not_specialize=["token_width", "num_rows"],
    do_not_specialize_on_alignment=["rows", "positions", "active", "spans", "lists"],
)
def _edit(
    rows, positions, active, tokens, spans, lists, adjusted, width, token_width, num_rows, RUN: tl.constexpr,
):  # fmt: skip
    """Biases, then stops, then what would complete a banned run; one after another, since they may name the same token."""
    number = tl.program_id(0)
    flags = tl.load(active + number)
    row = tl.load(rows + number)
    ours = adjusted + number.to(tl.int64) * width
    never = tl.full((RUN,), float("-inf"), tl.float32)
    if (flags & BIAS) != 0:
        begin = tl.load(spans + row)
        count = (tl.load(spans + num_rows + row) - begin) // 2
        for place in range(0, count, RUN):
            index = place + tl.arange(0, RUN)
            token = tl.load(lists + begin + index, mask=index < count, other=0)
            bias = tl.load(lists + begin + count + index, mask=index < count, other=0).to(tl.float32, bitcast=True)
            value = tl.load(ours + token, mask=index < count, other=0.0)
            tl.store(ours + token, value + bias, mask=index < count)
        tl.debug_barrier()
    if (flags & STOPS) != 0:
        begin = tl.load(spans + 2 * num_rows + row)
        end = tl.load(spans + 3 * num_rows + row)
        for place in range(begin, end, RUN):
            index = place + tl.arange(0, RUN)
            tl.store(ours + tl.load(lists + index, mask=index < end, other=0), never, mask=index < end)
    if (flags & RUNS) != 0:
        begin = tl.load(spans + 4 * num_rows + row)
        end = begin
        if tl.load(spans + 5 * num_rows + row) > begin:
            end += tl.load(lists + begin)
        position = tl.load(positions + number)
        text = tokens + row * token_width
        for place in range(begin, end, 2 * RUN):
            index = place + 2 * tl.arange(0, RUN)
            inside = index < end
            run = begin + tl.load(lists + index, mask=inside, other=0)
            before = tl.load(lists + index + 1, mask=inside, other=1) - 1
            is_behind = inside & (before <= position + 1)
            for back in range(tl.max(before, axis=0)):
                is_compared = is_behind & (back < before)
                theirs = tl.load(lists + run + before - 1 - back, mask=is_compared, other=0)
                mine = tl.load(text + position - back, mask=back <= position, other=-1)
                is_behind = is_behind & ((theirs == mine) | (back >= before))
            last = tl.load(lists + run + before, mask=is_behind, other=0)
            tl.store(ours + last, never, mask=is_behind)


@triton.jit
def _values(scores, adjusted, flags, number, columns, width):
    """A row's scores, adjusted where they are."""
    place = number.to(tl.int64) * width + columns
    end = _limit(flags, ADJUSTS, width)
    plain = tl.load(scores + place, mask=(columns >= end) & (columns < width), other=float("-inf")).to(tl.float32)
    other = tl.load(adjusted + place, mask=columns < end, other=float("-inf"))
    return tl.where(columns < end, other, plain)


@entry
@triton.jit(do_not_specialize=["num_tiles"], do_not_specialize_on_alignment=["active", "peaks", "places", "checks"])
def _find_peaks(scores, adjusted, active, peaks, places, checks, width, num_tiles, TILE: tl.constexpr):
    number = tl.program_id(0)
    tile = tl.program_id(1)
    flags = tl.load(active + number)
    if flags != 0:
        columns = tile * TILE + tl.arange(0, TILE)
        inside = columns < width
        values = _values(scores, adjusted, flags, number, columns, width)
        out = number * num_tiles + tile
        tl.store(peaks + out, tl.max(values, axis=0))
        tl.store(places + out, tile * TILE + tl.argmax(values, axis=0))
        if (flags & ADJUSTS) == 0:
            tl.store(checks + out, tl.sum(tl.where(inside, values, 0.0), axis=0))


@triton.jit
def _highest(peaks, number, num_tiles, PAD: tl.constexpr):
    tiles = tl.arange(0, PAD)
    return tl.max(tl.load(peaks + number * num_tiles + tiles, mask=tiles < num_tiles, other=float("-inf")), axis=0)


@triton.jit
def _weights(values, highest, heat):
    """In [0, 1], the likeliest token's at 1."""
    heat = tl.where(heat == 0.0, 1.0, heat)
    return tl.where(values == float("-inf"), 0.0, tl.exp((values - highest) / heat))


@triton.jit
def _next_digit(partials, number, num_tiles, left, PAD: tl.constexpr, DIGITS: tl.constexpr):
    """The digit at which `left` is reached from above, and what is left of it then. Partials stand by digit, from the highest.

    A negative `left` is a share of the sum of all of them.
    """
    tiles = tl.arange(0, PAD)[:, None]
    slots = tl.arange(0, DIGITS)
    place = (number * num_tiles + tiles) * DIGITS + slots[None, :]
    sums = tl.sum(tl.load(partials + place, mask=tiles < num_tiles, other=0.0), axis=0)
    wanted = tl.where(left < 0.0, -left * tl.sum(sums, axis=0), left)
    slot = tl.min(tl.where((tl.cumsum(sums, axis=0) >= wanted) & (sums > 0.0), slots, DIGITS), axis=0)
    slot = tl.minimum(slot, tl.max(tl.where(sums > 0.0, slots, 0), axis=0))
    left = wanted - tl.sum(tl.where(slots < slot, sums, 0.0), axis=0)
    return DIGITS - 1 - slot, tl.maximum(left, 1e-30)


@triton.jit
def _is_limited(flags, row, top_ks, top_ps, BY_MASS: tl.constexpr):
    """By the mass that is kept, or by the number of tokens."""
    if BY_MASS:
        is_limited = tl.load(top_ps + row) < 1.0
    else:
        is_limited = tl.load(top_ks + row) > 0
    return is_limited & ((flags & FILTERS) != 0)


@entry
@triton.jit(
    do_not_specialize=["num_tiles", "shift"],
    do_not_specialize_on_alignment=[
        "rows", "active", "temperatures", "top_ks", "top_ps", "peaks", "floors", "prefixes", "new_prefixes", "lefts",
        "new_lefts", "partials", "new_partials",
    ],
)  # fmt: skip
def _count_digits(
    scores, adjusted, rows, active, temperatures, top_ks, top_ps, peaks, floors,
    prefixes, new_prefixes, lefts, new_lefts, partials, new_partials, width, num_tiles, shift,
    BY_MASS: tl.constexpr, FIRST_SHIFT: tl.constexpr, DIGITS: tl.constexpr, DIGIT_BITS: tl.constexpr,
    PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What each tile has of each next digit, among weights whose digits so far are those of the last weight kept."""
    number = tl.program_id(0)
    tile = tl.program_id(1)
    flags = tl.load(active + number)
    row = tl.load(rows + number)
    if _is_limited(flags, row, top_ks, top_ps, BY_MASS):
        prefix = 0
        if shift == FIRST_SHIFT:
            if BY_MASS:
                left = -tl.load(top_ps + row)
            else:
                left = tl.minimum(tl.load(top_ks + row), width).to(tl.float32)
        else:
            digit, left = _next_digit(partials, number, num_tiles, tl.load(lefts + number), PAD, DIGITS)
            prefix = tl.load(prefixes + number) | (digit << (shift + DIGIT_BITS))
        if tile == 0:
            tl.store(new_prefixes + number, prefix)
            tl.store(new_lefts + number, left)
        columns = tile * TILE + tl.arange(0, TILE)
        inside = columns < width
        values = _values(scores, adjusted, flags, number, columns, width)
        weights = _weights(values, _highest(peaks, number, num_tiles, PAD), tl.load(temperatures + row))
        keys = weights.to(tl.int32, bitcast=True)
        is_ours = inside & ((keys >> (shift + DIGIT_BITS)) == (prefix >> (shift + DIGIT_BITS)))
        if BY_MASS:
            amounts = tl.where(is_ours & (keys >= tl.load(floors + number)), weights, 0.0)
        else:
            amounts = tl.where(is_ours, 1.0, 0.0)
        slots = DIGITS - 1 - ((keys >> shift) & (DIGITS - 1))
        out = new_partials + (number * num_tiles + tile) * DIGITS
        for slot in tl.static_range(DIGITS):
            tl.store(out + slot, tl.sum(tl.where(slots == slot, amounts, 0.0), axis=0))


@entry
@triton.jit(
    do_not_specialize=["num_tiles"],
    do_not_specialize_on_alignment=[
        "rows", "active", "top_ks", "top_ps", "prefixes", "lefts", "partials", "floors", "new_floors",
    ],
)  # fmt: skip
def _settle(
    rows, active, top_ks, top_ps, prefixes, lefts, partials, floors, new_floors, num_tiles,
    BY_MASS: tl.constexpr, DIGITS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """The last digit: the bits of the last weight kept, zero where all are."""
    number = tl.program_id(0)
    flags = tl.load(active + number)
    row = tl.load(rows + number)
    floor = 0
    if BY_MASS:
        floor = tl.load(floors + number)
    if _is_limited(flags, row, top_ks, top_ps, BY_MASS):
        digit, _ = _next_digit(partials, number, num_tiles, tl.load(lefts + number), PAD, DIGITS)
        floor = tl.maximum(floor, tl.load(prefixes + number) | digit)
    tl.store(new_floors + number, floor)


@triton.jit
def _kept(values, highest, row, number, flags, temperatures, min_ps, floors, HAS_FLOORS: tl.constexpr):
    """Weights of the tokens that may be drawn, zero for the others."""
    weights = _weights(values, highest, tl.load(temperatures + row))
    if HAS_FLOORS:
        is_filtered = (flags & FILTERS) != 0
        floor = tl.load(floors + number).to(tl.float32, bitcast=True)
        floor = tl.where(is_filtered, tl.maximum(floor, tl.load(min_ps + row)), 0.0)
        weights = tl.where(weights >= floor, weights, 0.0)
    return weights


@entry
@triton.jit(
    do_not_specialize=["num_tiles"],
    do_not_specialize_on_alignment=["rows", "active", "temperatures", "min_ps", "peaks", "floors", "sums"],
)
def _sum_kept(
    scores, adjusted, rows, active, temperatures, min_ps, peaks, floors, sums, width, num_tiles,
    HAS_FLOORS: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    tile = tl.program_id(1)
    flags = tl.load(active + number)
    if flags != 0:
        row = tl.load(rows + number)
        columns = tile * TILE + tl.arange(0, TILE)
        values = _values(scores, adjusted, flags, number, columns, width)
        highest = _highest(peaks, number, num_tiles, PAD)
        weights = _kept(values, highest, row, number, flags, temperatures, min_ps, floors, HAS_FLOORS)
        tl.store(sums + number * num_tiles + tile, tl.sum(weights, axis=0))


@entry
@triton.jit(
    do_not_specialize=["num_tiles"],
    do_not_specialize_on_alignment=[
        "rows", "positions", "active", "temperatures", "min_ps", "seeds", "choices", "peaks", "places", "checks",
        "floors", "sums", "out",
    ],
)  # fmt: skip
def _pick_kept(
    scores, adjusted, rows, positions, active, temperatures, min_ps, seeds, choices, peaks, places, checks, floors,
    sums, out, width, num_tiles, HAS_FLOORS: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    flags = tl.load(active + number)
    if flags != 0:
        row = tl.load(rows + number)
        tiles = tl.arange(0, PAD)
        there = tiles < num_tiles
        peak = tl.load(peaks + number * num_tiles + tiles, mask=there, other=float("-inf"))
        highest = tl.max(peak, axis=0)
        check = tl.sum(tl.load(checks + number * num_tiles + tiles, mask=there, other=0.0), axis=0)
        if tl.load(temperatures + row) == 0.0:
            token = tl.load(places + number * num_tiles + tl.argmax(peak, axis=0)).to(tl.int64)
        else:
            mass = tl.load(sums + number * num_tiles + tiles, mask=there, other=0.0)
            key = uniform_at(tl.load(seeds + row), tl.load(choices + row), tl.load(positions + number))
            target = (key * tl.sum(mass, axis=0)).to(tl.float32)
            tile = tl.min(tl.where((tl.cumsum(mass, axis=0) > target) & (mass > 0.0), tiles, PAD), axis=0)
            tile = tl.minimum(tile, tl.max(tl.where(mass > 0.0, tiles, 0), axis=0))
            before = tl.sum(tl.where(tiles < tile, mass, 0.0), axis=0)
            columns = tile * TILE + tl.arange(0, TILE)
            values = _values(scores, adjusted, flags, number, columns, width)
            weights = _kept(values, highest, row, number, flags, temperatures, min_ps, floors, HAS_FLOORS)
            is_passed = tl.cumsum(weights, axis=0) + before > target
            first = tl.min(tl.where(is_passed & (weights > 0.0), columns, width), axis=0)
            token = tl.minimum(first, tl.max(tl.where(weights > 0.0, columns, 0), axis=0)).to(tl.int64)
        token = tl.where(highest == float("-inf"), NOTHING_LEFT, token)
        is_finite = (check == check) & (tl.abs(check) != float("inf"))
        tl.store(out + number, tl.where(is_finite, token, NOT_DRAWN))


class SampleWork:
    """Memory of one call, and what its launches are told."""

    def __init__(self, scores: Tensor, draws: Draws, table: SamplingTable) -> None:
        self.scores, self.draws, self.table = scores, draws, table
        self.num_rows, self.width = scores.shape
        self.num_tiles = triton.cdiv(self.width, TILE)
        self.tiles = {"PAD": triton.next_power_of_2(self.num_tiles), "TILE": TILE}
        self.device = scores.device
        self.active = torch.empty(self.num_rows, dtype=torch.int32, device=self.device)
        self.peaks, self.sums, self.checks = torch.empty((3, self.num_rows, self.num_tiles), device=self.device)
        self.places = torch.empty((self.num_rows, self.num_tiles), dtype=torch.int32, device=self.device)
        self.grid = self.num_rows, self.num_tiles
        self.adjusted = self.peaks
        self.floors = self.active

    def adjust(self, bits: Tensor, tokens: Tensor) -> None:
        table, (rows, positions, masks) = self.table, self.draws
        counts = torch.empty((self.num_rows, self.width), dtype=torch.int32, device=self.device)
        self.adjusted = torch.empty((self.num_rows, self.width), device=self.device)
        _clear[self.grid](self.active, counts, self.width, TILE=TILE, num_warps=8)
        _count[(self.num_rows, HISTORY_PROGRAMS)](
            rows, positions, self.active, tokens, table.prompt_length, counts, self.width, tokens.stride(0),
            RUN=HISTORY_RUN, PROGRAMS=HISTORY_PROGRAMS, num_warps=4,
        )  # fmt: skip
        _adjust[self.grid](
            self.scores, rows, masks, self.active, table.repetition, table.presence, table.frequency, table.allowed,
            bits, counts, self.adjusted, self.checks, self.width, self.num_tiles, table.allowed.shape[1],
            TILE=TILE, num_warps=8,
        )  # fmt: skip
        _edit[(self.num_rows,)](
            rows, positions, self.active, tokens, table.spans, table.lists, self.adjusted, self.width,
            tokens.stride(0), table.spans.shape[1], RUN=LIST_RUN, num_warps=4,
        )  # fmt: skip

    def filter(self, needs: Needs) -> None:
        table, rows = self.table, self.draws.rows
        prefixes = torch.empty((2, self.num_rows), dtype=torch.int32, device=self.device)
        floors = torch.zeros((2, self.num_rows), dtype=torch.int32, device=self.device)
        lefts = torch.empty((2, self.num_rows), device=self.device)
        partials = torch.empty((2, self.num_rows, self.num_tiles, DIGITS), device=self.device)
        for by_mass in (False,) * needs.by_count + (True,) * needs.by_mass:
            for number, shift in enumerate(SHIFTS):
                old, new = number % 2, 1 - number % 2
                _count_digits[self.grid](
                    self.scores, self.adjusted, rows, self.active, table.temperature, table.top_k, table.top_p,
                    self.peaks, floors[0], prefixes[old], prefixes[new], lefts[old], lefts[new], partials[old],
                    partials[new], self.width, self.num_tiles, shift, BY_MASS=by_mass, FIRST_SHIFT=SHIFTS[0],
                    DIGITS=DIGITS, DIGIT_BITS=DIGIT_BITS, **self.tiles, num_warps=8,
                )  # fmt: skip
            last = len(SHIFTS) % 2
            _settle[(self.num_rows,)](
                rows, self.active, table.top_k, table.top_p, prefixes[last], lefts[last], partials[last], floors[0],
                floors[int(by_mass)], self.num_tiles, BY_MASS=by_mass, DIGITS=DIGITS, PAD=self.tiles["PAD"], num_warps=4,
            )  # fmt: skip
        self.floors = floors[int(needs.by_mass)]

    def draw(self, out: Tensor, *, is_filtered: bool) -> None:
        table, (rows, positions, _) = self.table, self.draws
        _sum_kept[self.grid](
            self.scores, self.adjusted, rows, self.active, table.temperature, table.min_p, self.peaks, self.floors,
            self.sums, self.width, self.num_tiles, HAS_FLOORS=is_filtered, **self.tiles, num_warps=8,
        )  # fmt: skip
        _pick_kept[(self.num_rows,)](
            self.scores, self.adjusted, rows, positions, self.active, table.temperature, table.min_p, table.seed,
            table.choice, self.peaks, self.places, self.checks, self.floors, self.sums, out, self.width,
            self.num_tiles, HAS_FLOORS=is_filtered, **self.tiles, num_warps=8,
        )  # fmt: skip


def _fits(scores: Tensor, draws: Draws, bits: Tensor, tokens: Tensor, table: SamplingTable, needs: Needs) -> bool:
    return scores.is_contiguous()


@sample.kernel("cuda", fits=_fits)
def sample_by_tiles(
    scores: Tensor, draws: Draws, bits: Tensor, tokens: Tensor, table: SamplingTable, needs: Needs
) -> Tensor:
    rows, positions, masks = draws
    drawn = draw_for_rows(scores, rows, table.temperature, DrawKeys(table.seed, table.choice, positions))
    if not (needs.adjusts or needs.filters):
        return drawn
    work = SampleWork(scores, draws, table)
    _note[(work.num_rows,)](rows, positions, masks, table.flags, table.min_length, work.active, num_warps=1)
    if needs.adjusts:
        work.adjust(bits, tokens)
    _find_peaks[work.grid](
        scores, work.adjusted, work.active, work.peaks, work.places, work.checks, work.width, work.num_tiles,
        TILE=TILE, num_warps=8,
    )  # fmt: skip
    if needs.filters:
        work.filter(needs)
    work.draw(drawn, is_filtered=needs.filters)
    return drawn
