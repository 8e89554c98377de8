"""How fast the simulator is: simulated seconds per second of processor time, and requests per second of it.

    python -m benchmarks.simulator [--repeats 3] [--fleet-requests 20000] [--only calm busy full fleet]

Stated workloads, all of ShareGPT-like lengths (mean prompt 200, mean answer 340 tokens) and Poisson arrivals on Llama-3.1-8B in
bf16 on an H100:

    calm, busy, full    one replica at rising rates; the last keeps 256 sequences running, and others waiting
    fleet               64 replicas behind least-pending at 640 requests a second; prompts are made as they are asked for

Each is run with runs predicted and, but for the fleet, step by step; the two must agree to the last digit. Medians are told,
and recorded as JSON. Processor time is that of this process: a busy machine inflates it less than the wall's.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.cli.plan.model import describe
from penstock.cli.simulate.command import Config, Machines, SimulatedLoad, make_fleet
from penstock.console.show import print_table
from penstock.runtime.core.request import Request, SamplingParams
from penstock.tools.cost.precision import Precision
from penstock.tools.sim.simulation import Fleet, Result, simulate

RESULTS = Path(__file__).parent / "results" / "simulator.json"
CASES = {"calm": 8.0, "busy": 40.0, "full": 100.0}
FLEET_REPLICAS, FLEET_RATE = 64, 640.0
GOAL = "100 simulated seconds a second with 256 sequences running; a million requests on 64 replicas in ten minutes"
COLUMNS = {
    "case": "case",
    "requests": "num_requests",
    "simulated s": "simulated_s",
    "steps": "num_steps",
    "running": "mean_running",
    "cpu s": "cpu_s",
    "x real time": "times_real",
    "requests/cpu s": "requests_per_cpu_s",
    "x stepwise": "times_stepwise",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-requests", type=int, default=2000)
    parser.add_argument("--fleet-requests", type=int, default=20_000)
    parser.add_argument(
        "--only", nargs="*", default=[*CASES, "fleet"], help="of these, what to measure; the rest stays recorded"
    )
    arguments = parser.parse_args()
    rows = [
        measure(name, CASES[name], arguments.num_requests, arguments.repeats)
        for name in CASES
        if name in arguments.only
    ]
    if "fleet" in arguments.only:
        rows.append(measure_fleet(arguments.fleet_requests))
    print_table(tuple(COLUMNS), [tuple(row[name] for name in COLUMNS.values()) for row in rows])
    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    measured = {row["case"] for row in rows}
    record = {
        "workload": (__doc__ or "").partition("\n\n")[2],
        "goal": GOAL,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "repeats": arguments.repeats,
        "rows": [row for row in before if row["case"] not in measured] + rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def measure(name: str, rate: float, num_requests: int, repeats: int) -> dict[str, Any]:
    fleet = _fleet(1)
    requests = list(stream(rate, num_requests))
    predicted = [timed(fleet, requests) for _ in range(repeats)]
    stepwise_s, stepwise = timed(replace(fleet, predicts=False), requests)
    if [one.end_s for one in predicted[0][1].timelines] != [one.end_s for one in stepwise.timelines]:
        raise RuntimeError("foretelling changed the result")
    return _row(name, statistics.median(cpu_s for cpu_s, _ in predicted), predicted[0][1], stepwise_s)


def measure_fleet(num_requests: int) -> dict[str, Any]:
    """Once: it is long. The time it takes to make the prompts is in it."""
    begin_s = time.monotonic()
    cpu_s, result = timed(_fleet(FLEET_REPLICAS), stream(FLEET_RATE, num_requests))
    wall_s = time.monotonic() - begin_s
    return _row(f"fleet of {FLEET_REPLICAS}", cpu_s, result, None) | {"wall_s": wall_s}


def stream(rate: float, num_requests: int) -> Iterator[Request]:
    """Requests one by one. No two prompts begin alike, so a prompt need only be a number and its successors."""
    recipe = SimulatedLoad(rate=rate, num_requests=num_requests).recipe(32_000)
    for number, outline in enumerate(recipe.outlines(0)):
        prompt = tuple(range(number, number + outline.num_own))
        yield Request(
            request_id=number, prompt=prompt, params=sampling(outline.num_answer), arrival_s=outline.arrival_s
        )


@lru_cache(maxsize=4096)
def sampling(num_answer: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_answer, ignore_eos=True, temperature=0.0)


def timed(fleet: Fleet, requests: Iterable[Request]) -> tuple[float, Result]:
    start_s = time.process_time()
    result = simulate(fleet, requests)
    return time.process_time() - start_s, result


def _fleet(num_replicas: int) -> Fleet:
    config = Config(machines=Machines(replicas=num_replicas))
    return make_fleet(config, describe(config.model).spec, Precision())


def _row(name: str, cpu_s: float, result: Result, stepwise_s: float | None) -> dict[str, Any]:
    simulated_s = result.summary.duration_s
    return {
        "case": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_at_end": round(os.getloadavg()[0], 1),
        "num_requests": len(result.timelines),
        "simulated_s": simulated_s,
        "num_steps": result.num_steps,
        "mean_running": statistics.mean(replica.mean_running for replica in result.replicas),
        "cpu_s": cpu_s,
        "times_real": simulated_s / cpu_s,
        "requests_per_cpu_s": len(result.timelines) / cpu_s,
        "times_stepwise": stepwise_s / cpu_s if stepwise_s else None,
    }


if __name__ == "__main__":
    main()
