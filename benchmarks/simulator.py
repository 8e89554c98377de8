"""How fast the simulator is: simulated seconds per second of this machine.

    python -m benchmarks.simulator [--repeats 5]

Stated workload: 2,000 requests, ShareGPT-like lengths, Poisson arrivals, four replicas of Llama-3.1-8B in bf16 on an H100, at
several rates. Each is run with and without foretelling runs of steps, interleaved; medians are told, and recorded as JSON.
Runs are timed twice, by the wall and by the processor time of this process, which a busy machine inflates less.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.cli.show import print_table
from penstock.cli.simulate import Config, Load, Machines, make_fleet, read_spec
from penstock.cost.precision import Precision
from penstock.sim.simulation import Fleet, Result, simulate
from penstock.workload.workload import Workload

RESULTS = Path(__file__).parent / "results" / "simulator.json"
RATES = (4.0, 8.0, 16.0, 32.0)
NUM_REPLICAS = 4
GOAL = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-requests", type=int, default=2000)
    arguments = parser.parse_args()
    rows = [measure(rate, arguments.num_requests, arguments.repeats) for rate in RATES]
    columns = ("requests/s", "simulated s", "steps", "running", "wall s", "cpu s", "x wall", "x cpu", "x cpu, stepwise")
    print_table(columns, [tuple(row.values())[: len(columns)] for row in rows])
    record = {
        "workload": f"{arguments.num_requests} requests, ShareGPT-like, Poisson, {NUM_REPLICAS} x llama-3.1-8b on h100-sxm",
        "goal": f"{GOAL:g} simulated seconds a second",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "repeats": arguments.repeats,
        "rows": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


def measure(rate: float, num_requests: int, repeats: int) -> dict[str, Any]:
    config = Config(machines=Machines(replicas=NUM_REPLICAS), load=Load(rate=rate, num_requests=num_requests))
    spec = read_spec(config.model)
    fleet = make_fleet(config, spec, Precision())
    workload = config.load.recipe(spec.vocab_size).make(config.load.seed)
    foretold, stepwise = [], []
    for number in range(repeats):
        foretold.append(timed(fleet, workload))
        if number < max(1, repeats // 2):
            stepwise.append(timed(replace(fleet, foretells=False), workload))
    result = foretold[0][2]
    if [one.end_s for one in result.timelines] != [one.end_s for one in stepwise[0][2].timelines]:
        raise RuntimeError("foretelling changed the result")
    wall_s = statistics.median(wall_s for wall_s, _, _ in foretold)
    cpu_s = statistics.median(cpu_s for _, cpu_s, _ in foretold)
    stepwise_cpu_s = statistics.median(cpu_s for _, cpu_s, _ in stepwise)
    simulated_s = result.summary.duration_s
    return {
        "rate": rate,
        "simulated_s": simulated_s,
        "num_steps": result.num_steps,
        "mean_running": statistics.mean(replica.mean_running for replica in result.replicas),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "times_real_wall": simulated_s / wall_s,
        "times_real_cpu": simulated_s / cpu_s,
        "times_real_cpu_stepwise": simulated_s / stepwise_cpu_s,
        "num_output_tokens": result.summary.num_output_tokens,
    }


def timed(fleet: Fleet, workload: Workload) -> tuple[float, float, Result]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = simulate(fleet, workload)
    return time.perf_counter() - wall_s, time.process_time() - cpu_s, result


if __name__ == "__main__":
    main()
