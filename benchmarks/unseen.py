"""Ten loads that no cost was fitted on, predicted and measured: bursts, long tails, shared prefixes, sessions.

    python -m benchmarks.unseen [--model default] [--turns 4] [--rate 0.6] [--loads bursty,sessions] [--state FILE] [--out FILE]

Each load is one run of its own, served in several turns with other requests each time: half a minute of a shared machine says
more about its neighbours than about a prediction. Percentiles are over the requests of all turns. Its engine is calibrated bit
by bit before and while it is served, as `benchmarks.accuracy` does it, and predicted for a machine as fast and as even as it
was around then; the cost itself is fitted to the bits of all runs, never to the steps of a load. The engine is busy for a
third to two thirds of the time: near its capacity a machine that is slower by a twentieth makes waits longer by a third, and
no prediction of a shared machine is nearer than that. Speculation is off on both sides: what drafts save depends on the text.
A run holds where the p50 of TTFT, TPOT and E2E are within 8 %, their p95 within 15 % and the throughput within 3 %. Beside
each figure stands the interval in which nine measurements of ten should lie, and in the end how many did.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.accuracy import Bench, Found, Piece, profile_of
from penstock.assembly.engine import load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.console.show import print_table
from penstock.tools.cost.measured.fitting import slowdowns_along
from penstock.tools.cost.measured.profile import Profile
from penstock.tools.measure.accuracy import Measurement, figures_of, predict
from penstock.tools.measure.calibration import Calibration, CalibrationPieces, StepRecorder
from penstock.tools.measure.live import Disturbance
from penstock.tools.measure.profiles import fleet_of
from penstock.tools.planner.verify.check import CheckRow, check
from penstock.tools.workload.arrivals import Constant, Gamma, Poisson
from penstock.tools.workload.lengths import LogNormal, Uniform
from penstock.tools.workload.workload import Conversation, Recipe, SharedPrefix, Workload

TARGETS = {"p50": 0.08, "p95": 0.15, "per_s": 0.03}
WANTED = 0.8
"""Of the runs, those that must hold."""
COVERED = 0.9
"""Of the intervals, those that must contain what was measured."""


def recipes(vocab_size: int, rate: float) -> dict[str, Recipe]:
    """`rate` times as many requests a second as an AMX machine of two cores bears well."""
    chat, short = LogNormal(80, 0.8, 8, 600), Uniform(8, 60)
    found = {
        "bursty": Recipe(Gamma(rate * 6.0, 3.0), short, Uniform(8, 40), 100),
        "bursty chat": Recipe(Gamma(rate * 2.2, 2.0), chat, LogNormal(40, 0.6, 4, 160), 50),
        "long answers": Recipe(Poisson(rate * 1.5), LogNormal(60, 0.6, 8, 300), LogNormal(40, 1.2, 2, 500), 40),
        "long prompts": Recipe(Poisson(rate * 1.3), LogNormal(120, 1.2, 8, 1500), LogNormal(30, 0.6, 4, 120), 36),
        "one prefix": Recipe(Poisson(rate * 1.5), Uniform(30, 200), Uniform(10, 60), 40, SharedPrefix(800)),
        "many prefixes": Recipe(Poisson(rate * 1.8), Uniform(20, 150), Uniform(10, 60), 45, SharedPrefix(400, 5, 0.8)),
        "sessions": Recipe(
            Poisson(rate * 0.8), Uniform(20, 120), Uniform(15, 60), 16, conversation=Conversation(3, think_s=0.8)
        ),
        "sessions of one system": Recipe(
            Poisson(rate * 0.8),
            Uniform(20, 80),
            Uniform(15, 50),
            16,
            SharedPrefix(300),
            conversation=Conversation(3, 0.5),
        ),
        "even questions": Recipe(Constant(rate * 1.5), Uniform(100, 400), Uniform(5, 30), 40),
        "bursts of everything": Recipe(
            Gamma(rate * 1.3, 2.5), LogNormal(90, 1.0, 8, 900), LogNormal(30, 1.0, 2, 300), 36
        ),
    }
    return {name: replace(recipe, vocab_size=vocab_size) for name, recipe in found.items()}


def rows_of(
    profile: Profile, config: EngineConfig, workloads: list[Workload], pieces: list[Piece], measured: list[Measurement]
) -> tuple[list[CheckRow], float]:
    """What was predicted and measured of one run, and the largest share of a turn's steps beyond what was fitted."""
    turns, outside = [], 0.0
    for workload, piece in zip(workloads, pieces, strict=True):
        fitted = replace(profile.fitted, slowdowns=slowdowns_along(profile.fitted, piece.steps))
        moments, fraction = predict(fleet_of(replace(profile, fitted=fitted), config), workload)
        turns.append(moments)
        outside = max(outside, fraction)
    error = profile.fitted.errors["all"].median
    predicted = [figures_of(moment) for moment in zip(*turns, strict=True)]
    return list(check(predicted, figures_of([one.run for one in measured]), 0.1, error).rows), outside


def record_of(rows: list[CheckRow], outside: float, measured: list[Measurement]) -> dict[str, Any]:
    figures = {
        row.name: {
            "predicted": round(row.predicted, 6),
            "measured": round(row.measured, 6),
            "error": round(row.error or 0.0, 4),
            "interval": [round(end, 6) for end in row.interval],
            "is_covered": row.interval[0] <= row.measured <= row.interval[1],
        }
        for row in rows
    }
    missed = [name for name, one in figures.items() if abs(one["error"]) > most_of(name)]
    return {
        "figures": figures,
        "missed": missed,
        "extrapolated_fraction": round(outside, 4),
        "disturbed_fraction": max(one.disturbed_fraction or 0.0 for one in measured),
        "num_requests": sum(len(one.run.e2e) for one in measured),
        "duration_s": round(sum(one.run.duration_s for one in measured), 2),
        "busy_fraction": round(busy_of(measured), 3),
    }


def busy_of(measured: list[Measurement]) -> float:
    """Of the time, what the engine computed."""
    computed_s = sum(step.device_s + step.host_s for one in measured for step in one.steps)
    return computed_s / sum(one.run.duration_s for one in measured)


def most_of(name: str) -> float:
    return next(most for key, most in TARGETS.items() if key in name)


def show(records: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(next(iter(records.values()))["figures"])
    rows = [
        (name, *(f"{100 * one['figures'][each]['error']:+.1f}" for each in names), ", ".join(one["missed"]) or "holds")
        for name, one in records.items()
    ]
    print_table(("error, %", *(name.removesuffix("_s") for name in names), ""), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="loads that were not fitted, predicted and measured")
    parser.add_argument("--model", default="default")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument(
        "--rate", type=float, default=1.0, help="arrivals, times those of the loads; less on a slower machine"
    )
    parser.add_argument("--loads", default="", help="of those below, the ones to serve now")
    parser.add_argument("--state", type=Path, default=None, help="go on from these runs, and keep all of them there")
    parser.add_argument("--measures-only", action="store_true", help="keep the runs and predict nothing yet")
    parser.add_argument("--predicts-only", action="store_true", help="serve nothing, predict what was kept")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    config = configure(model=args.model, speculate="off")
    loaded = load(config)
    found = Found(args.state)
    bench = Bench(config, loaded, size(config, loaded), found.seed)
    each = recipes(bench.vocab_size, args.rate)
    chosen = [name for name in each if not args.loads or name in args.loads.split(",")]
    recorder = StepRecorder()
    calibrated = make_engine(config, loaded, bench.sizing, bench.machine.hearing(recorder.record))
    calibration = Calibration(calibrated, recorder, bench.vocab_size, Random(bench.seed + len(found.pieces)))
    if not args.predicts_only:
        calibration.warm_up()
        pieces = CalibrationPieces(calibration)
        for name in chosen * args.turns:
            disturbance = Disturbance()
            pieces.begin()
            workload = each[name].make(bench.seed + len(found.served.get(name, ())))
            found.served.setdefault(name, []).append(bench.serve(config, workload, pieces.between))
            piece = Piece(round(pieces.seconds, 1), disturbance.fraction, recorder.steps)
            found.pieces.setdefault(name, []).append(piece)
            found.keep()
            print(f"{name} is served; others used {100 * (disturbance.fraction or 0.0):.0f} %", flush=True)
    if args.measures_only:
        return 0
    profile = profile_of(bench, found, calibrated.depth)
    records = {}
    for name, runs in found.served.items():
        workloads = [each[name].make(bench.seed + number) for number in range(len(runs))]
        records[name] = record_of(*rows_of(profile, config, workloads, found.pieces[name], runs), runs)
    show(records)
    return report(records, profile, args.out)


def report(records: Mapping[str, Mapping[str, Any]], profile: Profile, out: Path | None) -> int:
    held = [name for name, one in records.items() if not one["missed"]]
    intervals = [figure["is_covered"] for one in records.values() for figure in one["figures"].values()]
    covered = sum(intervals) / len(intervals)
    print(f"{len(held)} of {len(records)} runs hold; {100 * covered:.0f} % of {len(intervals)} intervals cover")
    if out is not None:
        record = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "profile": json.loads(replace(profile, fitted=replace(profile.fitted, slowdowns=())).to_json()),
            "runs": records,
            "num_held": len(held),
            "covered_fraction": covered,
        }
        out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if len(held) >= WANTED * len(records) and covered >= COVERED else 1


if __name__ == "__main__":
    raise SystemExit(main())
