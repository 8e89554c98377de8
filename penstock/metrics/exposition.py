"""Counters, gauges and histograms in the text form that Prometheus reads.

Cheap enough to be written on every token: a counter is a number, a histogram a list of numbers. Knows nothing of requests.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.metrics.aliases import aliased

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
"""Seconds to a first token."""
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Seconds between tokens."""
DURATION_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 480.0)
"""Seconds a whole request takes."""
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
"""Tokens."""


class Counter:
    """Only grows. With labels, one number for each set of values."""

    def __init__(self, name: str, help: str, start: float | None = None) -> None:
        """`start` has been counted elsewhere."""
        self.name, self.help, self.kind = name, help, "counter"
        self._values: dict[Labels, float] = {} if start is None else {(): float(start)}

    def add(self, amount: float = 1.0, labels: Labels = ()) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def value(self, labels: Labels = ()) -> float:
        return self._values.get(labels, 0.0)

    @property
    def total(self) -> float:
        """Over all labels."""
        return sum(self._values.values())

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        values = self._values or {(): 0.0}
        return [(f"{self.name}_total", labels, value) for labels, value in values.items()]


class Gauge:
    """Asked when it is read."""

    def __init__(self, name: str, help: str, read: Callable[[], float], labels: Labels = ()) -> None:
        self.name, self.help, self.kind = name, help, "gauge"
        self._read = read
        self._labels = labels

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        return [(self.name, self._labels, self._read())]


class GaugeTable(Gauge):
    """A number for each set of labels."""

    def __init__(self, name: str, help: str, rows: Iterable[tuple[Labels, float]]) -> None:
        super().__init__(name, help, lambda: 0.0)
        self._rows = rows

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        return [(self.name, labels, float(value)) for labels, value in self._rows]


class Buckets:
    """A histogram with the given upper bounds."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.kind = name, help, "histogram"
        self.sum = 0.0
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        rows: list[tuple[str, Labels, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            rows.append((f"{self.name}_bucket", (("le", _number(bound)),), total))
        return [*rows, (f"{self.name}_sum", (), self.sum), (f"{self.name}_count", (), total)]


Metric = Counter | Gauge | Buckets


def exposition(metrics: Iterable[Metric], common: Mapping[str, str]) -> str:
    """All metrics as text; `common` labels are put on every sample."""
    return exposition_of_all([(metrics, common)])


def exposition_of_all(groups: Iterable[tuple[Iterable[Metric], Mapping[str, str]]]) -> str:
    """Metrics of several things with labels that tell them apart: those of one name are one family."""
    families: dict[str, list[str]] = {}
    for metrics, common in groups:
        shared = tuple(common.items())
        for metric in metrics:
            family = f"{metric.name}_total" if metric.kind == "counter" else metric.name
            head = [f"# HELP {family} {_escaped(metric.help)}", f"# TYPE {family} {metric.kind}"]
            lines = families.setdefault(family, head)
            lines.extend(
                f"{name}{_braced(shared + labels)} {_number(value)}" for name, labels, value in metric.samples()
            )
    own = [line for lines in families.values() for line in lines]
    others = [line for family, lines in families.items() for line in aliased(family, lines)]
    return "\n".join([*own, *others, ""])


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
