"""Cost of a step on the host: schedule + commit, per running sequence, with and without a long queue.

    python benchmarks/scheduler.py [--json FILE]

Every sequence decodes one token a step (blocks are taken and published as in service); the time of whole steps is divided
by the number of running sequences. Medians of several passes.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator

from penstock.runtime.core.batch import StepOutput
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.scheduler import Scheduler

NUM_RUNNING = 256
PROMPT_TOKENS = 64
NUM_STEPS = 400


def make_scheduler(num_waiting: int) -> Scheduler:
    limits = Limits(
        num_blocks=NUM_RUNNING * 64,
        block_size=16,
        max_context=4096,
        max_batch_tokens=NUM_RUNNING * PROMPT_TOKENS,
        max_sequences=NUM_RUNNING,
        max_waiting=NUM_RUNNING + num_waiting,
        max_waiting_tokens=10**9,
    )
    scheduler = Scheduler(limits)
    for number in range(NUM_RUNNING + num_waiting):
        prompt = tuple(range(number, number + PROMPT_TOKENS))
        scheduler.add(Request(request_id=number, prompt=prompt, params=SamplingParams(max_tokens=900)), 0.0)
    return scheduler


def step_times(scheduler: Scheduler) -> Iterator[float]:
    while True:
        begun = time.perf_counter()
        batch = scheduler.schedule(0.0)
        scheduled = time.perf_counter()
        if batch is None:
            return
        output = StepOutput(tuple((7,) if chunk.samples else () for chunk in batch.chunks))
        made = time.perf_counter()
        scheduler.commit(batch, output, 0.0)
        yield (scheduled - begun) + (time.perf_counter() - made)


def measure(num_waiting: int) -> float:
    """Microseconds a sequence a step, the prompt's step left out."""
    times = step_times(make_scheduler(num_waiting))
    next(times)
    return statistics.median(next(times) for _ in range(NUM_STEPS)) / NUM_RUNNING * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="record the figures in this file")
    arguments = parser.parse_args()
    results = {waiting: statistics.median(measure(waiting) for _ in range(5)) for waiting in (0, 1000)}
    for waiting, microseconds in results.items():
        print(f"{NUM_RUNNING} running, {waiting:4d} waiting: {microseconds:.2f} us a sequence a step")
    if arguments.json:
        record = {
            "benchmark": "scheduler",
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "num_running": NUM_RUNNING,
            "microseconds_by_num_waiting": results,
        }
        with open(arguments.json, "w") as file:
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
