"""What was predicted beside what was measured: one workload, simulated and served, compared figure by figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

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


class Measurement(NamedTuple):
    """One workload, served."""

    num_requests: int
    duration_s: float
    figures: dict[str, float]
    disturbed_fraction: float | None
    """Of the machine, what others used meanwhile."""
    replayed: dict[str, float] | None
    """The same figures as simulated with the step times that were measured."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload, predicted, and measured once or several times: then the middle counts, figure by figure."""

    predicted: Summary
    measured: tuple[Measurement, ...]
    outside_fraction: float
    """Of the predicted steps, those beyond what the cost was fitted on."""

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """(predicted, measured), in seconds and tokens a second."""
        predicted = figures_of(self.predicted)
        return {
            name: (value, median([one.figures[name] for one in self.measured])) for name, value in predicted.items()
        }

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, less one."""
        return {name: _off(one, other) for name, (one, other) in self.figures.items()}

    def as_data(self) -> dict[str, Any]:
        each = [one.figures for one in self.measured]
        replayed = [one.replayed for one in self.measured if one.replayed is not None]
        figures: dict[str, Any] = {}
        for name, (one, other) in self.figures.items():
            figures[name] = {
                "predicted": round(one, 6),
                "measured": round(other, 6),
                "error": round(_off(one, other), 4),
            }
            if len(each) > 1:
                figures[name]["measured_each"] = [round(every[name], 6) for every in each]
            if len(replayed) == len(each):
                worst = max((_off(again[name], once[name]) for again, once in zip(replayed, each)), key=abs)
                figures[name]["replay_error"] = round(worst, 4)
        told = [one.disturbed_fraction for one in self.measured if one.disturbed_fraction is not None]
        return figures | {
            "num_requests": self.measured[0].num_requests,
            "duration_s": round(median([one.duration_s for one in self.measured]), 3),
            "disturbed_fraction": round(max(told), 4) if told else None,
            "extrapolated_fraction": round(self.outside_fraction, 4),
        }


def _off(predicted: float, measured: float) -> float:
    return predicted / measured - 1.0 if measured else 0.0


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


def predict(fleet: Fleet, workload: Workload) -> tuple[Summary, float]:
    """What the simulator says, and the share of steps for which the cost was asked beyond what it was fitted on."""
    cost = fleet.cost
    if not isinstance(cost, Measured):
        return simulate(fleet, workload).summary, 0.0
    num_asked, num_outside = cost.num_asked, cost.num_outside
    summary = simulate(fleet, workload).summary
    return summary, (cost.num_outside - num_outside) / max(cost.num_asked - num_asked, 1)


def measure(fleet: Fleet, engine: Engine, workload: Workload, steps: Sequence[StepTime] = ()) -> Measurement:
    """Serve a workload. The engine's prefix cache must not know its prompts yet.

    Given the list that the engine's steps come to, it is also told what the simulator says with the steps' own times in
    place of the cost: what is still off then is not the cost's fault.
    """
    num_before = len(steps)
    disturbance = Disturbance()
    served = serve_live(engine, workload)
    summary = summarize(served.timelines.ended, served.duration_s, None, served.timelines.gaps)
    fraction = disturbance.fraction
    replayed = figures_of(replay(fleet, workload, served, steps[num_before:])) if len(steps) > num_before else None
    return Measurement(summary.num_requests, summary.duration_s, figures_of(summary), fraction, replayed)


def compare(fleet: Fleet, engine: Engine, workload: Workload) -> Comparison:
    """Simulate a workload, then serve it."""
    predicted, outside_fraction = predict(fleet, workload)
    return Comparison(predicted, (measure(fleet, engine, workload),), outside_fraction)


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
