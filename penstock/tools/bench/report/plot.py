"""Plots as SVG text: lines over two axes, drawn to stand inside a page in light and dark. Knows nothing of what they show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 46
NUM_TICKS = 5
NUM_COLOURS = 6
LEAST_RATIO = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    points: Sequence[tuple[float, float]]
    colour: int = 0
    """Number of one of the page's colours (`.c0`, `.c1`, ...)."""
    has_dots: bool = False


def plot(title: str, lines: Sequence[Line], x_name: str, y_name: str, *, is_logarithmic: bool = False) -> str:
    """One plot; an empty string where there is nothing to draw. A logarithmic x axis leaves out what is not above zero."""
    kept = [
        replace(line, points=[point for point in line.points if not is_logarithmic or point[0] > 0.0]) for line in lines
    ]
    xs = [x for line in kept for x, _ in line.points]
    ys = [y for line in kept for _, y in line.points]
    if not xs:
        return ""
    margin = (abs(xs[0]) or 1.0) * 0.01 if min(xs) == max(xs) else 0.0  # a single value stands in the middle
    x_axis = _Axis(min(xs) - margin, max(xs) + margin, LEFT, WIDTH - RIGHT, is_logarithmic)
    y_axis = _Axis(min(0.0, *ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
        *_ticks(x_axis, "x", (TOP, HEIGHT - BOTTOM), HEIGHT - BOTTOM + 15, 0, "middle"),
        *_ticks(y_axis, "y", (LEFT, WIDTH - RIGHT), LEFT - 6, 4, "end"),
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text class="axis" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>",
        *(_drawn(line, x_axis, y_axis) for line in kept),
        "</svg>",
    ]
    return "\n".join(parts)


class _Axis:
    def __init__(self, low: float, high: float, start: float, end: float, is_logarithmic: bool = False) -> None:
        is_logarithmic = is_logarithmic and high >= LEAST_RATIO * low  # within less there are hardly any round numbers
        self._bend = math.log10 if is_logarithmic else float
        self.is_logarithmic = is_logarithmic
        self.low, self.high = low, high if high > low else low + (abs(low) or 1.0) * 0.01
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        low, high = self._bend(self.low), self._bend(self.high)
        return self.start + (self._bend(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            whole = [10.0**power * step for power in range(first, last + 1) for step in (1, 2, 5)]
            inside = [value for value in whole if self.low <= value <= self.high]
            return inside[:: max(1, len(inside) // 5)] or [self.low, self.high]
        raw = (self.high - self.low) / NUM_TICKS
        scale = 10.0 ** math.floor(math.log10(raw))
        step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _ticks(axis: _Axis, along: str, ends: tuple[int, int], beside: int, shift: int, anchor: str) -> list[str]:
    """Lines across the plot and their numbers, which stand `beside` the axis, moved along it by `shift`."""
    across = "y" if along == "x" else "x"
    return [
        f'<line class="grid" {along}1="{place:.1f}" {along}2="{place:.1f}" {across}1="{ends[0]}" {across}2="{ends[1]}"/>'
        f'<text class="tick" {along}="{place + shift:.1f}" {across}="{beside}" text-anchor="{anchor}">{_number(value)}</text>'
        for value in axis.ticks()
        for place in (axis.place(value),)
    ]


def _drawn(line: Line, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
    colour = line.colour % NUM_COLOURS
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return f'<polyline class="c{colour}" points="{path}"/>{dots if line.has_dots else ""}'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
