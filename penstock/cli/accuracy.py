"""What was predicted beside what was measured: one workload, simulated and served, compared figure by figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.cli.live import Disturbance, Served, serve_live
from penstock.core.features import StepTime
from penstock.cost.measured import Measured
from penstock.cost.replay import Replay, as_taken
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
    replayed: Summary | None = None
    """As simulated with the step times that were measured."""

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """(predicted, measured), in seconds and tokens a second."""
        measured = figures_of(self.measured)
        return {name: (value, measured[name]) for name, value in figures_of(self.predicted).items()}

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, less one."""
        return {name: one / other - 1.0 if other else 0.0 for name, (one, other) in self.figures.items()}

    def as_data(self) -> dict[str, Any]:
        figures = {
            name: {"predicted": round(one, 6), "measured": round(other, 6), "error": round(self.errors[name], 4)}
            for name, (one, other) in self.figures.items()
        }
        if self.replayed is not None:
            for name, value in figures_of(self.replayed).items():
                measured = self.figures[name][1]
                figures[name]["replay_error"] = round(value / measured - 1.0, 4) if measured else 0.0
        return figures | {
            "num_requests": self.measured.num_requests,
            "duration_s": round(self.measured.duration_s, 3),
            "disturbed_fraction": None if self.disturbed_fraction is None else round(self.disturbed_fraction, 4),
            "extrapolated_fraction": round(self.outside_fraction, 4),
        }


def figures_of(summary: Summary) -> dict[str, float]:
    """Seconds, and tokens a second."""
    figures = {
        f"{name}_{share}_s": float(getattr(getattr(summary, name), share))
        for name in ("ttft", "tpot", "e2e")
        for share in ("p50", "p95")
    }
    return figures | {"output_tokens_per_s": summary.output_tokens_per_s}


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


def compare(fleet: Fleet, engine: Engine, workload: Workload, steps: Sequence[StepTime] = ()) -> Comparison:
    """Simulate a workload, then serve it. The engine's prefix cache must not know its prompts yet.

    Given the list that the engine's steps come to, it is also told what the simulator says with the steps' own times in
    place of the cost: what is still off then is not the cost's fault.
    """
    predicted = simulate(fleet, workload)
    cost = fleet.cost
    outside = cost.num_outside / max(cost.num_asked, 1) if isinstance(cost, Measured) else 0.0
    num_before = len(steps)
    disturbance = Disturbance()
    served = serve_live(engine, workload)
    measured = summarize(served.timelines.ended, served.duration_s, None, served.timelines.gaps)
    replayed = replay(fleet, workload, served, steps[num_before:]) if len(steps) > num_before else None
    return Comparison(predicted.summary, measured, disturbance.fraction, outside, replayed)


def replay(fleet: Fleet, workload: Workload, served: Served, steps: Sequence[StepTime]) -> Summary:
    """What the simulator says of a workload that was served, given how long each step took.

    With the same schedule requests end in the same order, so each can be held to the arrival it had.
    """
    begun = [step._replace(start_s=step.start_s - steps[0].start_s) for step in steps]
    again = Workload(tuple(as_taken(workload.requests, served.taken_s, begun)))
    result = simulate(replace(fleet, cost=Replay(begun), foretells=False), again)
    for simulated, live in zip(result.timelines, served.timelines.ended):
        simulated.arrival_s = live.arrival_s - served.first_turn_s
    return summarize(result.timelines, result.summary.duration_s + served.first_turn_s)
