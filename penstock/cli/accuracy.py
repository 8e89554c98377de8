"""What was predicted beside what was measured: one workload, simulated and served, compared figure by figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.cli.live import Disturbance, serve_live
from penstock.cost.measured import Measured
from penstock.engine.engine import Engine
from penstock.metrics.summary import Summary, summarize
from penstock.sim.simulation import Fleet, simulate
from penstock.workload.workload import Workload

RATES = {"output_tokens_per_s": "output tokens/s"}
"""Figures that are no times."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload, predicted and measured."""

    predicted: Summary
    measured: Summary
    disturbed_fraction: float | None
    """Of the machine, what others used meanwhile."""
    outside_fraction: float
    """Of the predicted steps, those beyond what the cost was fitted on."""

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """(predicted, measured), in seconds and tokens a second."""
        one, other = self.predicted, self.measured
        rows: dict[str, tuple[float, float]] = {}
        for name in ("ttft", "tpot", "e2e"):
            for share in ("p50", "p95"):
                rows[f"{name}_{share}_s"] = getattr(getattr(one, name), share), getattr(getattr(other, name), share)
        rows["output_tokens_per_s"] = one.output_tokens_per_s, other.output_tokens_per_s
        return rows

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, less one."""
        return {name: one / other - 1.0 if other else 0.0 for name, (one, other) in self.figures.items()}

    def as_data(self) -> Mapping[str, Any]:
        return {
            name: {"predicted": round(one, 6), "measured": round(other, 6), "error": round(self.errors[name], 4)}
            for name, (one, other) in self.figures.items()
        } | {
            "num_requests": self.measured.num_requests,
            "duration_s": round(self.measured.duration_s, 3),
            "disturbed_fraction": None if self.disturbed_fraction is None else round(self.disturbed_fraction, 4),
            "extrapolated_fraction": round(self.outside_fraction, 4),
        }


def figure_rows(data: Mapping[str, Any]) -> list[tuple[str, float, float, str]]:
    """A comparison as a table's rows; times in milliseconds."""
    return [
        (_label(name), _scale(name) * one["predicted"], _scale(name) * one["measured"], f"{100 * one['error']:+.1f} %")
        for name, one in data.items()
        if isinstance(one, Mapping)
    ]


def _label(name: str) -> str:
    if name not in RATES:
        kind, share, _ = name.split("_")
        return f"{kind.upper()} {share}, ms"
    return RATES[name]


def _scale(name: str) -> float:
    return 1.0 if name in RATES else 1e3


def compare(fleet: Fleet, engine: Engine, workload: Workload) -> Comparison:
    """Simulate a workload, then serve it. The engine's prefix cache must not know its prompts yet."""
    predicted = simulate(fleet, workload)
    cost = fleet.cost
    outside = cost.num_outside / max(cost.num_asked, 1) if isinstance(cost, Measured) else 0.0
    disturbance = Disturbance()
    served = serve_live(engine, workload)
    measured = summarize(served.timelines.ended, served.duration_s, None, served.timelines.gaps)
    return Comparison(predicted.summary, measured, disturbance.fraction, outside)
