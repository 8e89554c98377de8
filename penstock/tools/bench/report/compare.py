"""Two reports side by side: what differs, how surely, and whether they may be compared at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.bench.report.flags import Doubt, worst_first
from penstock.tools.bench.report.interval import Interval, difference
from penstock.tools.bench.report.report import HEADLINES, SCHEMA, VERSION

MAX_BYTES = 2**30
NEEDED = (
    "target",
    "workload",
    "workload_digest",
    "verdict",
    "flags",
    "headlines",
    "runs",
    "client",
    "knee",
    "formulas",
    "asked",
)


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    name: str
    before: float
    after: float
    change: Interval
    is_better: bool | None
    """None: no difference that chance does not explain, or too few runs to tell."""

    @property
    def percent(self) -> float | None:
        return 100.0 * (self.after - self.before) / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class ReportComparison:
    rows: tuple[ComparedFigure, ...]
    faults: tuple[Doubt, ...]
    """Reasons to doubt it; `invalid` ones mean that the two were not asked the same."""

    @property
    def is_sound(self) -> bool:
        return not any(fault.level == "invalid" for fault in self.faults)


def read_report(path: Path) -> dict[str, Any]:
    """A report as `penstock bench --json` wrote it. Anything else is refused by name."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than a report can be")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is no report of penstock bench; write one with --json FILE")
    if data.get("version") != VERSION:
        raise ConfigError(f"{path} is a report of version {data.get('version')}; this penstock reads version {VERSION}")
    missing = [name for name in NEEDED if name not in data]
    if missing:
        raise ConfigError(f"{path} is damaged: {missing[0]} is missing")
    return data


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> ReportComparison:
    """From the first to the second."""
    rows = []
    for name, (words, better) in HEADLINES.items():
        before, after = _values(first, name), _values(second, name)
        change = difference(before, after)
        sign = change.mean if better == "higher" else -change.mean
        is_better = sign > 0.0 if change.is_clear else None
        rows.append(ComparedFigure(words, sum(before) / len(before), sum(after) / len(after), change, is_better))
    return ReportComparison(tuple(rows), tuple(_faults(first, second)))


def _values(report: Mapping[str, Any], name: str) -> list[float]:
    """Of repeated runs; of a search, of the run at its knee."""
    knee = report["knee"]
    if knee is None:
        return [run["headlines"][name] for run in report["runs"]]
    rated = [run for run in report["runs"] if run["rate"] == knee["rate"]] or report["runs"][-1:]
    return [run["headlines"][name] for run in rated]


def _faults(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Doubt]:
    faults = []
    differing = list(_differences(first["workload"], second["workload"]))
    if differing:
        faults.append(Doubt("workload", "invalid", f"not the same load: {'; '.join(differing[:6])}"))
    for name, report in (("first", first), ("second", second)):
        if report["verdict"] != "valid":
            faults.append(
                Doubt("verdict", "invalid", f"the {name} is {report['verdict']}: its figures are not its server's")
            )
        if report.get("is_partial"):
            faults.append(Doubt("partial", "invalid", f"the {name} was interrupted: it is not the whole load"))
        for flag in report["flags"]:
            if flag["level"] == "warning":
                faults.append(Doubt(flag["name"], "warning", f"the {name}: {flag['text']}"))
    if any(len(report["runs"]) < 2 or report["knee"] is not None for report in (first, second)):
        text = "no intervals: one run cannot tell a difference from chance; measure both with --repeats 3 or more"
        faults.append(Doubt("single-run", "warning", text))
    if first["client"].get("system") != second["client"].get("system"):
        faults.append(Doubt("clients", "note", "measured from different kinds of machines"))
    return worst_first(faults)


def _differences(first: Any, second: Any, place: str = "") -> list[str]:
    """Leaves that differ, by their names."""
    if isinstance(first, dict) and isinstance(second, dict):
        return [
            text
            for name in {**first, **second}
            for text in _differences(first.get(name), second.get(name), f"{place}.{name}".lstrip("."))
        ]
    return [] if first == second else [f"{place} {first} and {second}"]
