"""Formats chosen matrix by matrix: as few bits as a size allows, where they hurt least.

What a format costs at a matrix is measured: the model's predictions on calibration text with that matrix alone rounded, as KL
divergence from the model itself. The choice is then the best use of the bits there are: steps up to a wider format are taken by
what they save for each bit they cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Offer:
    """A matrix in one format."""

    bits: float
    """Of the whole matrix."""
    harm: float
    """Divergence of the model with this matrix in this format, all else whole."""


def choose(offers: Mapping[str, Sequence[Offer]], most_bits: float) -> dict[str, int]:
    """For each matrix the number of its offer; together they take at most `most_bits`.

    Offers come in the order of their bits. Those that a cheaper mix of two neighbours beats are passed over, so that what a
    bit saves falls from step to step, and taking the best step first is best.
    """
    hulls = {name: _hull(each) for name, each in offers.items()}
    chosen = dict.fromkeys(offers, 0)
    used = sum(offers[name][hull[0]].bits for name, hull in hulls.items())
    if used > most_bits:
        raise ConfigError(
            f"even the smallest formats take {used:,.0f} bits of {most_bits:,.0f}; choose a larger --bits-per-weight"
        )
    steps: list[tuple[float, str, int, float]] = []
    for name, hull in hulls.items():
        for place, (now, then) in enumerate(pairwise(offers[name][number] for number in hull)):
            more = then.bits - now.bits
            steps.append(((then.harm - now.harm) / more, name, place, more))
    for _, name, place, more in sorted(steps):
        if chosen[name] == place and used + more <= most_bits:
            used += more
            chosen[name] += 1
    return {name: hulls[name][place] for name, place in chosen.items()}


def _hull(offers: Sequence[Offer]) -> list[int]:
    """Numbers of the offers from which bits are well spent: the lower convex hull, beginning with the smallest."""
    hull: list[int] = []
    for number, offer in enumerate(offers):
        if hull and offer.harm >= offers[hull[-1]].harm:
            continue
        while len(hull) >= 2:
            first, last = offers[hull[-2]], offers[hull[-1]]
            if (first.harm - last.harm) * (offer.bits - last.bits) > (last.harm - offer.harm) * (
                last.bits - first.bits
            ):
                break
            hull.pop()
        hull.append(number)
    return hull
