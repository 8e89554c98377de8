"""The change between two pages of metrics, and signs: fields that say how they are read from it.

What a page does not have is NaN: every comparison with it is false, so a rule that lacks a figure stays silent.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field, fields
from operator import methodcaller
from typing import Any

from penstock.metrics.page import Page

Where = Callable[[Mapping[str, str]], bool]


class Change:
    """What happened between two pages. Remembers the names it was asked for and did not find."""

    def __init__(self, before: Page, after: Page, seconds: float) -> None:
        self.absent: set[str] = set()
        self._before = before
        self._after = after
        self._seconds = seconds

    def count(self, name: str, where: Where | None = None) -> float:
        """How much a counter grew. One that fell began anew in between, and counts from zero."""
        if self._name(name) is None:
            return math.nan
        before, after = _sum(self._before, name, where), _sum(self._after, name, where)
        return after - before if after >= before else after

    def rate(self, name: str, where: Where | None = None) -> float:
        return self.count(name, where) / self._seconds

    def gauge(self, *names: str) -> float:
        """The last value, summed over engines, of a counter as it stands too; of several spellings the first there is."""
        name = self._name(*names)
        return math.nan if name is None else _sum(self._after, name, None)

    def gauge_before(self, *names: str) -> float:
        name = self._name(*names)
        return math.nan if name is None or name not in self._before else _sum(self._before, name, None)

    def largest(self, *names: str) -> float:
        """The last value of the engine that has most."""
        name = self._name(*names)
        return math.nan if name is None else max(sample.value for sample in self._after[name])

    def smallest(self, name: str) -> float:
        return math.nan if self._name(name) is None else min(sample.value for sample in self._after[name])

    def label(self, name: str, label: str) -> float:
        """A number that a page has in a label."""
        found = next((one.labels[label] for one in self._after.get(name, ()) if label in one.labels), None)
        if found is None:
            self.absent.add(f"{name}{{{label}}}")
        try:
            return float(found or math.nan)
        except ValueError:
            return math.nan

    def ratio(self, part: str, whole: str) -> float:
        """Of what two counters grew by."""
        return share(self.count(part), self.count(whole))

    def mean(self, *names: str) -> float:
        """Of what a histogram took in meanwhile; NaN if nothing."""
        name = self._name(*names, suffix="_count")
        if name is None:
            return math.nan
        return self.ratio(f"{name}_sum", f"{name}_count")

    def quantile(self, fraction: float, *names: str) -> float:
        """Of what a histogram took in meanwhile, even within a bucket; NaN if nothing."""
        name = self._name(*names, suffix="_bucket")
        if name is None:
            return math.nan
        before, after = _buckets(self._before, f"{name}_bucket"), _buckets(self._after, f"{name}_bucket")
        has_restarted = any(after.get(bound, 0.0) < count for bound, count in before.items())
        grown = {bound: count - (0.0 if has_restarted else before.get(bound, 0.0)) for bound, count in after.items()}
        return _quantile(fraction, grown)

    @property
    def has_restarted(self) -> bool:
        """A counter fell: another process answers now. A new engine under the same server begins its own counters anew, too."""
        names = [name for name in self._before if name.endswith("_total") and name in self._after]
        grown = {name: _sum(self._after, name, None) - _sum(self._before, name, None) for name in names}
        return grown.get("penstock_engine_restarts_total", 0.0) <= 0 and any(change < 0 for change in grown.values())

    def _name(self, *names: str, suffix: str = "") -> str | None:
        found = next((name for name in names if name + suffix in self._after), None)
        if found is None:
            self.absent.add(names[0])
        return found


def share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else math.nan


def measured(
    measure: Callable[[Change], float] | str, *names: object, default: float = math.nan, of_machine: bool = False
) -> Any:
    """A sign, and how it is read: by a function, or by a method of `Change` that is asked for `names`. What it says of a
    machine and its price servers of other makers leave out: without such a sign nothing is missing."""
    read = methodcaller(measure, *names) if isinstance(measure, str) else measure
    return field(default=default, metadata={"measure": read, "of_machine": of_machine})


def measures_of(signs: type) -> Iterator[tuple["Field[Any]", Callable[[Change], float]]]:
    """The fields of signs that are read from a change."""
    return ((sign, sign.metadata["measure"]) for sign in fields(signs) if "measure" in sign.metadata)


def _sum(page: Page, name: str, where: Where | None) -> float:
    return sum(sample.value for sample in page.get(name, ()) if where is None or where(sample.labels))


def _buckets(page: Page, name: str) -> dict[float, float]:
    """Counts by upper bound, summed over engines."""
    counts: dict[float, float] = {}
    for sample in page.get(name, ()):
        try:
            bound = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        counts[bound] = counts.get(bound, 0.0) + sample.value
    return counts


def _quantile(fraction: float, counts: Mapping[float, float]) -> float:
    """From counts of all at or below each bound. Beyond the last finite bound nothing is known but that bound."""
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if not total > 0.0:
        return math.nan
    low, seen = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= fraction * total and counts[bound] > seen:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (fraction * total - seen) / (counts[bound] - seen)
        low, seen = bound, counts[bound]
    return low
