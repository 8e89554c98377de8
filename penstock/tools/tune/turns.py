"""Measurements by turns: every contender serves the same load in each round, and differences count round by round.

A machine that is slow for a while is slow for all of a round; so the difference to the default within it is what is judged,
by Student's interval at 95 %. A contender that is surely no better is not measured again.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.tools.bench.report.interval import Interval, interval

LEAST_ROUNDS = 3
"""With fewer, nothing is excluded."""
NOISY_SPREAD = 0.15
"""Standard deviation of the default's rounds over their mean beyond which a machine is called noisy."""


@dataclass(slots=True)
class Contest:
    """Rounds of a default and its contenders, by name. Values are goodput: more is better."""

    contenders: tuple[str, ...]
    rounds: list[Mapping[str, float]] = field(default_factory=list)
    """Each has the default, under the empty name, and those that were still measured."""
    left_out: frozenset[str] = frozenset()
    """Contenders that the time is not spent on, though chance may have hidden that they are better."""

    def add(self, values: Mapping[str, float]) -> None:
        self.rounds.append(dict(values))

    def gain(self, name: str) -> Interval:
        """What it is better than the default, as a share of the default's mean."""
        pairs = [(one[""], one[name]) for one in self.rounds if name in one]
        default = sum(value for value, _ in pairs) / len(pairs) if pairs else 0.0
        if default <= 0.0:
            return interval([float(other > 0.0) for _, other in pairs])
        return interval([(other - value) / default for value, other in pairs])

    @property
    def remaining(self) -> tuple[str, ...]:
        """Settings that are not excluded: chance may still have hidden that they are better."""
        return tuple(name for name in self.contenders if name not in self.left_out and not self._is_lost(name))

    def narrow(self, count: int) -> None:
        """Go on with the best so far: rounds of few tell more than rounds of many."""
        ordered = sorted(self.contenders, key=lambda name: self.gain(name).mean, reverse=True)
        self.left_out |= frozenset(ordered[count:])

    @property
    def winner(self) -> str | None:
        """The one that is better than the default beyond chance, and by most; None keeps the default."""
        sure = [name for name in self.contenders if self.is_better(name)]
        return max(sure, key=lambda name: self.gain(name).mean, default=None)

    @property
    def is_over(self) -> bool:
        """No setting is left, or one has won and none left could be better still."""
        remaining, winner = self.remaining, self.winner
        if not remaining:
            return True
        if winner is None:
            return False
        least = self.gain(winner)
        return all(name == winner or _high(self.gain(name)) <= least.mean for name in remaining)

    @property
    def spread(self) -> float:
        """Of the default's own rounds: standard deviation over mean."""
        values = [one[""] for one in self.rounds]
        return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 and any(values) else 0.0

    def is_better(self, name: str) -> bool:
        gain = self.gain(name)
        return gain.count >= LEAST_ROUNDS and gain.mean > 0.0 and gain.is_clear

    def _is_lost(self, name: str) -> bool:
        gain = self.gain(name)
        return gain.count >= LEAST_ROUNDS and _high(gain) <= 0.0


def _high(gain: Interval) -> float:
    return gain.mean + (gain.half_width or 0.0)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How far two rankings of the same agree, from -1 to 1; ties count for neither. None for fewer than two."""
    if len(first) < 2:
        return None
    signs = [
        (first[i] > first[j]) - (first[i] < first[j]) == (second[i] > second[j]) - (second[i] < second[j])
        for i in range(len(first))
        for j in range(i)
        if first[i] != first[j] and second[i] != second[j]
    ]
    return (2.0 * sum(signs) - len(signs)) / len(signs) if signs else None
