"""How fast the simulator is: simulated seconds per second of processor time, and requests per second of it.

    python -m benchmarks.simulator [--repeats 3] [--fleet-requests 20000]

Stated workloads, all of ShareGPT-like lengths (mean prompt 200, mean answer 340 tokens) and Poisson arrivals on Llama-3.1-8B in
bf16 on an H100:

    calm, busy, full    one replica at rising rates; the last keeps 256 sequences running, and others waiting
    fleet               64 replicas behind least-pending at 640 requests a second; prompts are made as they are asked for

Each is run with runs foretold and, but for the fleet, step by step; the two must agree to the last digit. Medians are told,
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
from pathlib import Path
from typing import Any

from penstock.cli.show import print_table
from penstock.cli.simulate import Config, Load, Machines, make_fleet, read_spec
from penstock.core.request import Request, SamplingParams
from penstock.cost.precision import Precision
from penstock.sim.simulation import Fleet, Result, simulate

RESULTS = Path(__file__).parent / "results" / "simulator.json"
CASES = {"calm": 8.0, "busy": 40.0, "full": 100.0}
FLEET_REPLICAS, FLEET_RATE = 64, 640.0
GOAL = "100 simulated seconds a second with 256 sequences running; a million requests on 64 replicas in ten minutes"
COLUMNS = ("case", "simulated s", "steps", "running", "cpu s", "x real time", "requests/cpu s", "x stepwise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-requests", type=int, default=2000)
    parser.add_argument("--fleet-requests", type=int, default=20_000)
    arguments = parser.parse_args()
    rows = [measure(name, rate, arguments.num_requests, arguments.repeats) for name, rate in CASES.items()]
    rows.append(measure_fleet(arguments.fleet_requests))
    print_table(COLUMNS, [tuple(row.values()) for row in rows])
    record = {
        "workload": (__doc__ or "").partition("\n\n")[2],
        "goal": GOAL,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "repeats": arguments.repeats,
        "rows": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def measure(name: str, rate: float, num_requests: int, repeats: int) -> dict[str, Any]:
    fleet = _fleet(1)
    requests = list(stream(rate, num_requests))
    foretold = [timed(fleet, requests) for _ in range(repeats)]
    stepwise_s, stepwise = timed(replace(fleet, foretells=False), requests)
    if [one.end_s for one in foretold[0][1].timelines] != [one.end_s for one in stepwise.timelines]:
        raise RuntimeError("foretelling changed the result")
    return _row(name, statistics.median(cpu_s for cpu_s, _ in foretold), foretold[0][1], stepwise_s)


def measure_fleet(num_requests: int) -> dict[str, Any]:
    """Once: it is long. The time it takes to make the prompts is in it."""
    cpu_s, result = timed(_fleet(FLEET_REPLICAS), stream(FLEET_RATE, num_requests))
    return _row(f"fleet of {FLEET_REPLICAS}", cpu_s, result, None)


def stream(rate: float, num_requests: int) -> Iterator[Request]:
    """Requests one by one. No two prompts begin alike, so a prompt need only be a number and its successors."""
    recipe = Load(rate=rate, num_requests=num_requests).recipe(32_000)
    for number, outline in enumerate(recipe.outlines(0)):
        prompt = tuple(range(number, number + outline.num_own))
        params = SamplingParams(max_tokens=outline.num_answer, ignore_eos=True, temperature=0.0)
        yield Request(request_id=number, prompt=prompt, params=params, arrival_s=outline.arrival_s)


def timed(fleet: Fleet, requests: Iterable[Request]) -> tuple[float, Result]:
    start_s = time.process_time()
    result = simulate(fleet, requests)
    return time.process_time() - start_s, result


def _fleet(num_replicas: int) -> Fleet:
    config = Config(machines=Machines(replicas=num_replicas))
    return make_fleet(config, read_spec(config.model), Precision())


def _row(name: str, cpu_s: float, result: Result, stepwise_s: float | None) -> dict[str, Any]:
    simulated_s = result.summary.duration_s
    return {
        "case": name,
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
