"""Does the simulator predict this machine? Calibrates, predicts workloads that were not fitted, serves them, and compares.

    python -m benchmarks.accuracy [--model default] [--turns 3] [--state turns.json] [--measures-only] [--out record.json]

    steady chat      independent users, a few at a time
    bursty short     short questions in bursts that queue
    long shared      long prompts of which most is one prefix that the cache holds
    replay           the batches of a served workload, made again by the simulator from the step times that were logged
    batching         static against continuous batching on answers of very different lengths: the ratio, predicted and measured

Both sides count alike: TTFT from the scheduled arrival to the end of the turn of the loop that brought the first token. A
machine, a virtual one above all, is not equally fast from one second to the next. So it is calibrated bit by bit: before a
workload, and about every second while it is served, when it has nothing to do and its clock can stand still. A turn is each
workload once, with other requests every time. After the turns the cost is fitted to all bits; what it says of a workload in
a turn is for a machine as fast and as even as it was in the bits around it. Percentiles are over the requests of all turns.
Beside each error stands where it would lie nine times in ten if turns were drawn again from these: an error within reach of
0 is weather, one out of its reach is the cost's. The last column replays the steps' own times: what is off there is
scheduling, arrivals or definitions; what is off only before it is the cost, or the neighbours, whose share of the machine
is told.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple

from penstock.assembly.engine import LoadedModel, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.console.show import print_table
from penstock.runtime.core.features import Features, StepTime
from penstock.runtime.sizing import Sizing
from penstock.tools.cost.cost import Cost
from penstock.tools.cost.measured.fitting import fit_steps, slowdowns_along
from penstock.tools.cost.measured.profile import Profile
from penstock.tools.cost.measured.replay import Replay, as_taken
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.measure.accuracy import (
    NUM_DRAWS,
    AccuracyComparison,
    MeasuredRun,
    Measurement,
    figure_rows,
    likely,
    measure,
    predict,
)
from penstock.tools.measure.calibration import Calibration, CalibrationPieces, StepRecorder
from penstock.tools.measure.live import Disturbance, serve_live
from penstock.tools.measure.profiles import Measuring, fleet_of
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.workload.arrivals import AtOnce, Gamma, Poisson
from penstock.tools.workload.lengths import LogNormal, Uniform
from penstock.tools.workload.workload import Recipe, SharedPrefix, Workload

MAX_DISTURBED = 0.1
TARGETS = {"p50": 0.10, "p95": 0.20, "output_tokens_per_s": 0.05}
BATCHINGS = ("static", "continuous")


def recipes(vocab_size: int) -> dict[str, Recipe]:
    return {
        "steady chat": Recipe(
            Poisson(2.5), LogNormal(80, 0.8, 8, 600), LogNormal(50, 0.6, 4, 200), 30, vocab_size=vocab_size
        ),
        "bursty short": Recipe(Gamma(8.0, 3.0), Uniform(8, 60), Uniform(4, 32), 80, vocab_size=vocab_size),
        "long shared": Recipe(
            Poisson(1.5), Uniform(60, 300), Uniform(10, 50), 18, SharedPrefix(900), vocab_size=vocab_size
        ),
    }


class Machine:
    """Puts the steps of its engines in a row, by its own clock: a step has rested since the last one of any of them, and
    another engine of the same weights has kept the caches warm."""

    def __init__(self) -> None:
        self._end_s = 0.0

    def hearing(self, write: Callable[[StepTime], None]) -> Callable[[StepTime], None]:
        """What an engine tells its steps to, so that they are written by this clock."""
        origin_s: list[float] = []

        def hear(step: StepTime) -> None:
            if not origin_s:
                origin_s.append(time.monotonic() - step.start_s - step.device_s - step.host_s)
            start_s = origin_s[0] + step.start_s
            rest_s = min(step.rest_s, max(start_s - self._end_s, 0.0))
            self._end_s = start_s + step.device_s + step.host_s
            write(step._replace(start_s=start_s, rest_s=rest_s))

        return hear


class Bench:
    def __init__(self, config: EngineConfig, loaded: LoadedModel, sizing: Sizing, seed: int) -> None:
        self.config, self.loaded, self.sizing, self.seed = config, loaded, sizing, seed
        self.vocab_size = loaded.spec.vocab_size
        self.machine = Machine()

    def serve(self, config: EngineConfig, workload: Workload, between: Callable[[], None]) -> Measurement:
        """By a fresh engine: its prefix cache must know nothing of the prompts."""
        steps: list[StepTime] = []
        engine = make_engine(config, self.loaded, self.sizing, self.machine.hearing(steps.append))
        warm = Recipe(AtOnce(), Uniform(16, 300), Uniform(2, 8), 4, vocab_size=self.vocab_size)
        serve_live(engine, warm.make(SystemRandom().randrange(2**31)))
        return measure(self.fleet(config, Replay([])), engine, workload, steps, between)

    def fleet(self, config: EngineConfig, cost: Cost) -> Fleet:
        return Fleet(config, self.sizing, cost)

    def replay(self, workload: Workload) -> dict[str, Any]:
        """Serve, then let the simulator schedule with the times that were logged: each step must be the same."""
        steps: list[StepTime] = []
        engine = make_engine(self.config, self.loaded, self.sizing, steps.append)
        served = serve_live(engine, workload)
        cost = Replay(steps)
        again = Workload(tuple(as_taken(workload.requests, served.taken_s, steps)))
        simulate(replace(self.fleet(self.config, cost), depth=engine.depth, predicts=False), again)
        logged = [step.features for step in steps]
        num_alike = sum(1 for one, other in zip(logged, cost.asked) if one == other)
        return {"num_steps": len(logged), "num_simulated": len(cost.asked), "num_alike": num_alike}


def read_steps(rows: list[list[Any]]) -> list[StepTime]:
    return [StepTime._make((*row, Features(*features))) for *row, features in rows]


class Piece(NamedTuple):
    """Calibration before and during one workload."""

    seconds: float
    disturbed_fraction: float | None
    steps: list[StepTime]

    @classmethod
    def of(cls, seconds: float, disturbed_fraction: float | None, rows: list[list[Any]]) -> "Piece":
        return cls(seconds, disturbed_fraction, read_steps(rows))


class Found:
    """What the turns so far have found; kept in a file, so that a long measurement can be made in several short ones."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        kept = json.loads(path.read_text()) if path and path.exists() else {}
        self.seed: int = kept.get("seed", SystemRandom().randrange(2**31))
        self.pieces = {name: [Piece.of(*row) for row in rows] for name, rows in kept.get("pieces", {}).items()}
        """One for each workload that was served."""
        self.served = {
            name: [
                Measurement(MeasuredRun(*run), fraction, replayed and MeasuredRun(*replayed), read_steps(steps))
                for run, fraction, replayed, steps in rows
            ]
            for name, rows in kept.get("served", {}).items()
        }

    def keep(self) -> None:
        if self._path is not None:
            data = {"seed": self.seed, "pieces": self.pieces, "served": self.served}
            self._path.write_text(json.dumps(data))


def profile_of(bench: Bench, found: Found, depth: int) -> Profile:
    name = bench.loaded.files.name if bench.loaded.files else bench.config.model.model
    facts = Measuring(name, bench.config, bench.sizing, bench.vocab_size, depth).facts()
    pieces = [piece for each in found.pieces.values() for piece in each]
    steps = [step for piece in pieces for step in piece.steps]
    measuring = {
        "seconds": round(sum(piece.seconds for piece in pieces), 1),
        "num_steps": len(steps),
        "disturbed_fraction": max(piece.disturbed_fraction or 0.0 for piece in pieces),
    }
    return Profile(**facts, fitted=fit_steps(steps, overlaps=depth > 1), measuring=measuring)


def predict_each(
    profile: Profile, config: EngineConfig, workloads: list[Workload], pieces: list[Piece]
) -> tuple[tuple[MeasuredRun, ...], float]:
    """Each workload on a machine as fast and as even as it was around then; and the share of steps that were extrapolated."""
    predicted = []
    for workload, piece in zip(workloads, pieces, strict=True):
        fitted = replace(profile.fitted, slowdowns=slowdowns_along(profile.fitted, piece.steps))
        predicted.append(predict(fleet_of(replace(profile, fitted=fitted), config), workload))
    return tuple(MeasuredRun.joined(moments) for moments, _ in predicted), max(fraction for _, fraction in predicted)


def pace(slowdowns: Sequence[Slowdown]) -> float:
    """How many times as long as usual all that was computed took."""
    return sum(slowdown.seconds for slowdown in slowdowns) / sum(
        slowdown.seconds / slowdown.factor for slowdown in slowdowns
    )


def misses(data: dict[str, Any]) -> list[str]:
    """Figures further off than they should be."""
    return [
        name
        for name, one in data.items()
        if isinstance(one, dict) and any(key in name and abs(one["error"]) > most for key, most in TARGETS.items())
    ]


def show(name: str, data: dict[str, Any]) -> None:
    print(
        f"\n{name}: {data['num_requests']} requests in {data['duration_s']} s; others used "
        f"{100 * (data['disturbed_fraction'] or 0.0):.1f} % of the machine; "
        f"{100 * data['extrapolated_fraction']:.1f} % of steps extrapolated"
    )
    reported = [one for one in data.values() if isinstance(one, dict)]
    ends = [one.get("error_range", (one["error"], one["error"])) for one in reported]
    ranges = [f"{100 * low:+.0f} to {100 * high:+.0f} %" for low, high in ends]
    replays = [f"{100 * one['replay_error']:+.1f} %" for one in reported]
    rows = [(*row, spread, replayed) for row, spread, replayed in zip(figure_rows(data), ranges, replays)]
    print_table(("", "predicted", "measured", "error", "by chance", "with the steps' own times"), rows)
    if (data["disturbed_fraction"] or 0.0) > MAX_DISTURBED:
        print("others had so much of the machine that this judges them, not the cost; measure again when it is quiet")
    else:
        print("further off than aimed at: " + (", ".join(misses(data)) or "nothing"))


def show_fit(profile: Profile) -> None:
    print(f"fitted to {profile.fitted.num_steps} steps; off on steps not fitted:")
    percent = [
        (kind, one.num_cells, *(f"{100 * value:.1f} %" for value in (one.median, one.p95, one.bias)))
        for kind, one in profile.fitted.errors.items()
    ]
    print_table(("", "cells", "median", "p95", "bias"), percent)


def ratio(compared: dict[str, AccuracyComparison]) -> dict[str, Any]:
    """Output tokens a second of continuous over static batching, and between what it would lie by chance."""
    ours, theirs = (compared[name] for name in ("continuous", "static"))
    sides = {
        "predicted": [(one.duration_s, other.duration_s) for one, other in zip(ours.predicted, theirs.predicted)],
        "measured": [(one.run.duration_s, other.run.duration_s) for one, other in zip(ours.measured, theirs.measured)],
    }

    def found(drawn: Sequence[int]) -> dict[str, float]:
        # The same requests on both sides: what differs is how long they took.
        each = {side: [sum(taken) for taken in zip(*(pairs[one] for one in drawn))] for side, pairs in sides.items()}
        predicted, measured = (theirs_s / ours_s for ours_s, theirs_s in each.values())
        return {"predicted": predicted, "measured": measured, "error": predicted / measured - 1.0}

    random, turns = Random(0), range(len(ours.measured))
    errors = [found(random.choices(turns, k=len(turns)))["error"] for _ in range(NUM_DRAWS)]
    return found(turns) | {"error_range": likely(errors), "measured_each": [t / o for o, t in sides["measured"]]}


def main() -> int:
    parser = argparse.ArgumentParser(description="simulator against engine")
    parser.add_argument("--model", default="default")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--state", type=Path, default=None, help="go on from these turns, and keep all of them there")
    parser.add_argument("--measures-only", action="store_true", help="keep the turns and predict nothing yet")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    config = configure(model=args.model)
    loaded = load(config)
    found = Found(args.state)
    bench = Bench(config, loaded, size(config, loaded), found.seed)
    each = {name: (config, recipe) for name, recipe in recipes(bench.vocab_size).items()}
    uneven = Recipe(AtOnce(), Uniform(8, 64), LogNormal(24, 1.2, 2, 250), 32, vocab_size=bench.vocab_size)
    each |= {name: (configure(config, batching=name, max_sequences=8), uneven) for name in BATCHINGS}
    recorder = StepRecorder()
    calibrated = make_engine(config, loaded, bench.sizing, bench.machine.hearing(recorder.record))
    calibration = Calibration(calibrated, recorder, bench.vocab_size, Random(bench.seed + len(found.pieces)))
    calibration.warm_up()
    pieces = CalibrationPieces(calibration)
    for turn in range(args.turns):
        for name, (engine_config, recipe) in Random(bench.seed + len(found.pieces)).sample(
            list(each.items()), len(each)
        ):
            served = found.served.setdefault(name, [])
            disturbance = Disturbance()
            pieces.begin()
            served.append(bench.serve(engine_config, recipe.make(bench.seed + len(served)), pieces.between))
            piece = Piece(round(pieces.seconds, 1), disturbance.fraction, recorder.steps)
            found.pieces.setdefault(name, []).append(piece)
        found.keep()
        print(f"turn {turn + 1} of {args.turns} is over", flush=True)
    if args.measures_only:
        return 0
    profile = profile_of(bench, found, calibrated.depth)
    show_fit(profile)
    compared = {}
    for name, (engine_config, recipe) in each.items():
        served = found.served[name]
        workloads = [recipe.make(bench.seed + turn) for turn in range(len(served))]
        predicted, outside_fraction = predict_each(profile, engine_config, workloads, found.pieces[name])
        compared[name] = AccuracyComparison(predicted, tuple(served), outside_fraction)
        show(name, compared[name].as_data())
    print(f"\ncontinuous over static batching: {ratio(compared)}")
    replayed = bench.replay(recipes(bench.vocab_size)["bursty short"].make(bench.seed - 1))
    print(f"\nreplay: {replayed}")
    data = {name: one.as_data() for name, one in compared.items()}
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": json.loads(replace(profile, fitted=replace(profile.fitted, slowdowns=())).to_json()),
        "paces": {
            name: [round(pace(slowdowns_along(profile.fitted, piece.steps)), 3) for piece in each]
            for name, each in found.pieces.items()
        },
        "seed": bench.seed,
        "workloads": {name: one for name, one in data.items() if name not in BATCHINGS},
        "replay": replayed,
        "batching": {"ratio": ratio(compared)} | {name: data[name] for name in BATCHINGS},
        "is_quiet": max((one["disturbed_fraction"] or 0.0) for one in data.values()) <= MAX_DISTURBED,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    missed = [name for name in record["workloads"] if misses(data[name])]
    print(f"missed in {', '.join(missed)}" if missed else "every figure is within its target")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
