"""Replicas by thresholds and by prediction, on recorded bursts: who is late, and what the replicas cost.

    python -m benchmarks.scaling [--trace FILE] [--factor 8] [--seconds 600] [--cold-start-s 30] [--out FILE]

Llama-3.1-8B on H100s in simulated time, between 1 and 16 of them. A threshold is of pending requests a replica. By prediction
a replica is ordered when, with the arrivals and the cold start there are, more than a twentieth of the first tokens would
come later than the SLO. Without a trace the load swells and falls again every four minutes. A threshold is worth its cost
where no other rule is cheaper with fewer late requests.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from penstock.config import EngineConfig
from penstock.console.show import print_table
from penstock.metrics.summary import Slo
from penstock.runtime.core.request import Request
from penstock.runtime.models import catalog
from penstock.runtime.sizing import Memory, size_engine
from penstock.service.cluster.scaling import Scaling
from penstock.tools.cost.hardware import find
from penstock.tools.cost.roofline import Roofline
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.workload.arrivals import AtOnce
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.trace_files import read
from penstock.tools.workload.workload import Recipe, Workload

SPEC, GPU = catalog.find("llama-3-8b"), find("h100-sxm")
TTFT_S = 1.0
SLO = Slo(ttft_s=TTFT_S)
FIRST_S = 60.0
"""Requests from then on are counted: a fleet that begins with one replica under full load says nothing about bursts."""
THRESHOLDS = (4.0, 8.0, 16.0, 32.0, 64.0)


def fleet(scaling: Scaling) -> Fleet:
    config = EngineConfig()
    memory = Memory(free_bytes=GPU.memory_bytes, weight_bytes=2 * SPEC.num_parameters)
    return Fleet(config, size_engine(config, SPEC, memory), Roofline(SPEC, GPU.achievable), scaling=scaling)


def swelling(seconds: float) -> list[Request]:
    """From 5 to 150 requests a second and back, every four minutes."""
    random, now, found = Random(0), 0.0, []
    for request in Recipe(AtOnce(), Uniform(200, 1200), Uniform(40, 240), int(60 * seconds)).make(0).requests:
        phase = now % 240 / 240
        now += random.expovariate(5.0 + 145.0 * max(0.0, 1.0 - abs(phase - 0.5) * 4.0))
        if now > seconds:
            break
        found.append(replace(request, arrival_s=now))
    return found


def recorded(path: Path, factor: float, seconds: float) -> Workload:
    return read(path).faster(factor).window(0.0, seconds).workload(SPEC.vocab_size)


def rules(cold_start_s: float) -> dict[str, Scaling]:
    plain = Scaling(1, 16, cold_start_s=cold_start_s, down_delay_s=60.0, interval_s=1.0, window_s=15.0)
    found = {f"{target:g} pending": replace(plain, target=target) for target in THRESHOLDS}
    return found | {"predicted": replace(plain, target=64.0, ttft_s=TTFT_S)}


def judge(rows: dict[str, dict[str, float]]) -> list[str]:
    """Thresholds that are cheaper than prediction and make fewer late."""
    own = rows["predicted"]
    return [
        name
        for name, one in rows.items()
        if one["late_fraction"] < own["late_fraction"] and one["replica_hours"] < own["replica_hours"]
    ]


def run(requests: Workload | Sequence[Request], cold_start_s: float) -> dict[str, dict[str, float]]:
    rows = {}
    for name, scaling in rules(cold_start_s).items():
        result = simulate(fleet(scaling), requests, SLO)
        counted = [one for one in result.timelines if one.arrival_s >= FIRST_S]
        late = sum(one.ttft_s is None or one.ttft_s > TTFT_S for one in counted)
        rows[name] = {
            "late_fraction": round(late / max(len(counted), 1), 4),
            "replica_hours": round(result.replica_seconds / 3600.0, 3),
            "num_starts": result.num_starts,
        }
        print(name, rows[name], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="replicas by thresholds and by prediction")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--factor", type=float, default=8.0, help="how many times as fast a trace is played")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cold-start-s", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    record: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "loads": {}}
    for path in args.trace or [None]:
        name = "swelling" if path is None else path.stem
        requests = swelling(args.seconds) if path is None else recorded(path, args.factor, args.seconds)
        rows = run(requests, args.cold_start_s)
        print_table((name, *next(iter(rows.values()))), [(rule, *one.values()) for rule, one in rows.items()])
        beaten = judge(rows)
        print(f"cheaper and better than prediction: {', '.join(beaten) or 'none'}")
        record["loads"][name] = {"rules": rows, "better_than_predicted": beaten}
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
