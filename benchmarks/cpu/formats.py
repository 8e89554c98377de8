"""Formats of one model side by side: prefill, one stream and a full batch, by turns.

    python benchmarks/cpu/formats.py NAME=MODEL NAME=MODEL ... [--turns 5] [--requests 64] [--only W1 W2]
        [--cpu-time] [--out record.json]

The first is what the others are compared with. Every model is opened once; a turn runs each workload on all of them, one after
another, so that a slow moment of the machine is everybody's. A ratio is the median of the ratios of turns. With --cpu-time
seconds are those of this process's processors: what they would be on a machine that nobody else uses, apart from its caches.

    W1  prefill of 512 tokens               W2  128 tokens after 64, one sequence
    W3  64 requests of 256 + 128, 32 at once
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

from penstock import LLM
from penstock.offline.speed import SpeedTest

SHAPES = {"W1": (1, 512, 1), "W2": (1, 64, 128), "W3": (0, 256, 128)}
"""Requests (none: as many as asked for), tokens of a prompt and of an answer."""


def seconds(bench: SpeedTest, shape: tuple[int, int, int], num_requests: int, *, counts_cpu: bool) -> float:
    clock = time.process_time if counts_cpu else time.monotonic
    count, size, answer = shape
    prompts = [bench.ids(size) for _ in range(count or num_requests)]
    begin = clock()
    bench.timed(prompts, answer)
    return clock() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="Formats of one model by turns")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=list(SHAPES))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    named = dict(each.split("=", 1) for each in args.models)
    benches = {
        name: SpeedTest(LLM(path, max_sequences=32, num_blocks=1024, speculate="off"), number)
        for number, (name, path) in enumerate(named.items())
    }
    for bench in benches.values():
        bench.timed([bench.ids(64)], 4)
    runs: dict[str, dict[str, list[float]]] = {work: {name: [] for name in benches} for work in args.only}
    for _ in range(args.turns):
        for work in args.only:
            for name, bench in benches.items():
                taken = seconds(bench, SHAPES[work], args.requests, counts_cpu=args.cpu_time)
                runs[work][name].append(round(taken, 4))
    first = next(iter(benches))
    medians = {work: {name: statistics.median(found) for name, found in each.items()} for work, each in runs.items()}
    ratios = {
        work: {name: round(statistics.median(a / b for a, b in zip(each[first], each[name])), 3) for name in each}
        for work, each in runs.items()
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    clock = "processor seconds" if args.cpu_time else "seconds"
    record = {"machine": machine, "clock": clock, "medians": medians, "times_as_fast": ratios, "runs": runs}
    print(json.dumps(record if args.out is None else {"medians": medians, "times_as_fast": ratios}, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
