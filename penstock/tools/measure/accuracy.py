"""What was predicted beside what was measured: one workload, simulated and served, compared figure by figure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from penstock.console.show import cell
from penstock.metrics.summary import percentiles
from penstock.metrics.timeline import Timeline
from penstock.runtime.core.features import StepTime
from penstock.runtime.engine.engine import Engine
from penstock.tools.cost.measured.ramps import MeasuredCost
from penstock.tools.cost.measured.replay import Replay, as_taken
from penstock.tools.measure.live import Disturbance, Served, serve_live
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.workload.workload import Workload

NUM_DRAWS = 200
LIKELY = 0.9
"""Share of chance that a range of errors spans."""
TIMES = ("ttft", "tpot", "e2e")


class MeasuredRun(NamedTuple):
    """A workload's requests, simulated or served: how long each took."""

    ttft: list[float]
    tpot: list[float]
    e2e: list[float]
    num_tokens: int
    """Tokens that came."""
    duration_s: float

    @classmethod
    def of(cls, timelines: Sequence[Timeline], duration_s: float) -> "MeasuredRun":
        each = ([getattr(one, f"{name}_s") for one in timelines] for name in TIMES)
        ttft, tpot, e2e = ([time for time in times if time is not None] for times in each)
        return cls(ttft, tpot, e2e, sum(one.num_tokens for one in timelines), duration_s)

    @classmethod
    def joined(cls, runs: Sequence["MeasuredRun"]) -> "MeasuredRun":
        """All of them, one after the other."""
        ttft, tpot, e2e = ([time for run in runs for time in getattr(run, name)] for name in TIMES)
        return cls(ttft, tpot, e2e, sum(run.num_tokens for run in runs), sum(run.duration_s for run in runs))


class Measurement(NamedTuple):
    """One workload, served."""

    run: MeasuredRun
    disturbed_fraction: float | None
    """Of the machine, what others used meanwhile."""
    replayed: MeasuredRun | None
    """The same as simulated with the step times that were measured."""
    steps: Sequence[StepTime] = ()
    """Its own."""


@dataclass(frozen=True, slots=True)
class AccuracyComparison:
    """A workload, predicted and measured, or several of one kind: then the requests of all of them count together."""

    predicted: tuple[MeasuredRun, ...]
    measured: tuple[Measurement, ...]
    outside_fraction: float
    """Of the predicted steps, those beyond what the cost was fitted on."""
    moments: tuple[MeasuredRun, ...] = ()
    """What was predicted, apart by the moment at which a machine with slow moments is asked."""

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """(predicted, measured), in seconds and tokens a second."""
        measured = figures_of([one.run for one in self.measured])
        return {name: (one, measured[name]) for name, one in figures_of(self.predicted).items()}

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, less one."""
        return {name: _off(one, other) for name, (one, other) in self.figures.items()}

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Between what each error would lie nine times in ten if as many runs were drawn from these: what chance alone does."""
        random = Random(0)
        draws = []
        for _ in range(NUM_DRAWS):
            drawn = random.choices(range(len(self.measured)), k=len(self.measured))
            runs = figures_of([self.measured[one].run for one in drawn])
            reported = figures_of([self.predicted[one] for one in drawn])
            draws.append({name: _off(reported[name], runs[name]) for name in runs})
        return {name: likely([draw[name] for draw in draws]) for name in draws[0]}

    def as_data(self) -> dict[str, Any]:
        each = [figures_of([one.run]) for one in self.measured]
        predicted = [figures_of([one]) for one in self.predicted]
        moments = [figures_of([one]) for one in self.moments]
        replayed = [figures_of([one.replayed]) for one in self.measured if one.replayed is not None]
        ranges = self.ranges()
        figures: dict[str, Any] = {}
        for name, (one, other) in self.figures.items():
            figures[name] = {
                "predicted": round(one, 6),
                "measured": round(other, 6),
                "error": round(_off(one, other), 4),
            }
            if len(moments) > 1:
                reported_each = [moment[name] for moment in moments]
                figures[name]["predicted_range"] = [round(min(reported_each), 6), round(max(reported_each), 6)]
            if len(each) > 1:
                figures[name]["error_range"] = [round(end, 4) for end in ranges[name]]
                figures[name]["predicted_each"] = [round(every[name], 6) for every in predicted]
                figures[name]["measured_each"] = [round(every[name], 6) for every in each]
            if len(replayed) == len(each):
                worst = max((_off(again[name], once[name]) for again, once in zip(replayed, each)), key=abs)
                figures[name]["replay_error"] = round(worst, 4)
        reported = [one.disturbed_fraction for one in self.measured if one.disturbed_fraction is not None]
        return figures | {
            "num_requests": sum(len(one.run.e2e) for one in self.measured),
            "duration_s": round(sum(one.run.duration_s for one in self.measured), 3),
            "disturbed_fraction": round(max(reported), 4) if reported else None,
            "extrapolated_fraction": round(self.outside_fraction, 4),
        }


def _off(predicted: float, measured: float) -> float:
    return predicted / measured - 1.0 if measured else 0.0


def likely(errors: Sequence[float]) -> tuple[float, float]:
    """Between which nine in ten of these lie."""
    ordered = sorted(errors)
    left_out = round((1.0 - LIKELY) / 2.0 * len(ordered))
    return ordered[left_out], ordered[-1 - left_out]


def figures_of(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Seconds, and tokens a second, over the requests of all these."""
    figures: dict[str, float] = {}
    whole = MeasuredRun.joined(runs)
    for name in TIMES:
        reported = percentiles(getattr(whole, name))
        figures |= {f"{name}_p50_s": reported.p50, f"{name}_p95_s": reported.p95}
    return figures | {"output_tokens_per_s": whole.num_tokens / whole.duration_s}


def figure_rows(data: Mapping[str, Any]) -> list[tuple[str, float, float, str]]:
    """A comparison as a table's rows; times in milliseconds."""
    return [
        (label, scale * one["predicted"], scale * one["measured"], f"{100 * one['error']:+.1f} %")
        for label, scale, one in _shown(data)
    ]


def moment_rows(data: Mapping[str, Any]) -> list[tuple[str, float, str, float, str]]:
    """Likewise, with what was predicted for the luckiest and the unluckiest moment."""
    ranges = [
        " to ".join(cell(scale * end) for end in one.get("predicted_range", ())) for _, scale, one in _shown(data)
    ]
    rows = zip(figure_rows(data), ranges)
    return [(label, predicted, between, measured, error) for (label, predicted, measured, error), between in rows]


def _shown(data: Mapping[str, Any]) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """Figures of a comparison: what a table calls each, and times what it shows it."""
    for name, one in data.items():
        if isinstance(one, Mapping):
            kind, share, _ = name.rsplit("_", 2)
            yield (
                ("output tokens/s", 1.0, one) if kind == "output_tokens" else (f"{kind.upper()} {share}, ms", 1e3, one)
            )


def predict(fleet: Fleet, workload: Workload) -> tuple[tuple[MeasuredRun, ...], float]:
    """What the simulator says, for as many moments as make a difference; and the share of steps for which the cost was asked
    beyond what it was fitted on."""
    cost = fleet.cost
    if not isinstance(cost, MeasuredCost):
        return (_simulated(fleet, workload),), 0.0
    num_asked, num_outside = cost.num_asked, cost.num_outside
    runs = tuple(_simulated(one, workload) for one in fleet.moments)
    return runs, (cost.num_outside - num_outside) / max(cost.num_asked - num_asked, 1)


def _simulated(fleet: Fleet, workload: Workload) -> MeasuredRun:
    result = simulate(fleet, workload)
    return MeasuredRun.of(result.timelines, result.summary.duration_s)


def measure(
    fleet: Fleet,
    engine: Engine,
    workload: Workload,
    steps: Sequence[StepTime] = (),
    between: Callable[[], None] | None = None,
) -> Measurement:
    """Serve a workload. The engine's prefix cache must not know its prompts yet.

    Given the list that the engine's steps come to, it is also told what the simulator says with the steps' own times in
    place of the cost: what is still off then is not the cost's fault.
    """
    num_before = len(steps)
    disturbance = Disturbance()
    served = serve_live(engine, workload, between)
    fraction = disturbance.fraction
    own = steps[num_before:]
    replayed = replay(fleet, workload, served, own) if own and not workload.later else None
    return Measurement(MeasuredRun.of(served.timelines.ended, served.duration_s), fraction, replayed, own)


def replay(fleet: Fleet, workload: Workload, served: Served, steps: Sequence[StepTime]) -> MeasuredRun:
    """What the simulator says of a workload that was served, given how long each step took.

    With the same schedule requests end in the same order, so each can be held to the arrival it had.
    """
    begun = []
    for number, step in enumerate(steps):
        paused_s = sum(seconds for num_steps, seconds in served.pauses if 0 < num_steps <= number)
        begun.append(step._replace(start_s=step.start_s - steps[0].start_s - paused_s))
    again = Workload(tuple(as_taken(workload.requests, served.taken_s, begun)))
    result = simulate(replace(fleet, cost=Replay(begun), predicts=False), again)
    for simulated, live in zip(result.timelines, served.timelines.ended):
        simulated.arrival_s = live.arrival_s - served.first_turn_s
    return MeasuredRun.of(result.timelines, result.summary.duration_s + served.first_turn_s)
