"""Where a step's time goes: the random workload at a few moments, kernel by kernel, and the host beside the GPU.

    python -m benchmarks.gpu.profile [--models qwen3-0.6b] [--fp8] [--at 10,300,700] [--json FILE]

For each moment: wall time of a step, time the host waited for the GPU in it, time the GPU was busy, and the kernels that
took most of it.
"""

import argparse
import json
import random
import statistics
import time
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.suite import prompts, sampling
from penstock import LLM
from penstock.runtime.execution.cuda import runner as cuda_runner

WINDOW = 8


class Watch:
    """Stands between `LLM` and its engine and looks closely at some of the steps."""

    def __init__(self, llm: LLM, moments: list[int]) -> None:
        self.moments = moments
        self.walls: list[float] = []
        self.waits: list[float] = []
        self.records: list[dict[str, object]] = []
        self._step = llm.engine.step
        self._profile: profile | None = None
        self._last = time.perf_counter()
        llm.engine.step = self.step  # type: ignore[method-assign]
        tokens = cuda_runner.Flight.tokens

        def timed(flight: cuda_runner.Flight) -> list[int]:
            begun = time.perf_counter()
            found = tokens(flight)
            self.waits[-1] += time.perf_counter() - begun
            return found

        cuda_runner.Flight.tokens = timed  # type: ignore[method-assign,assignment]

    def step(self) -> object:
        number = len(self.walls)
        if number in self.moments:
            torch.cuda.synchronize()
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            self._profile.__enter__()
        if self._profile is not None and number - WINDOW in self.moments:
            torch.cuda.synchronize()
            self._profile.__exit__(None, None, None)
            self._report(number - WINDOW, self._profile)
            self._profile = None
        now = time.perf_counter()
        self.walls.append(now - self._last)
        self.waits.append(0.0)
        self._last = now
        return self._step()

    def _report(self, number: int, seen: profile) -> None:
        times: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for event in seen.events():
            if str(event.device_type).endswith("CUDA"):
                times[event.name] += event.device_time
                counts[event.name] += 1
        nearby = slice(max(number - 40, 1), max(number - 1, 2))
        record = {
            "step": number,
            "wall_ms": statistics.median(self.walls[nearby]) * 1e3,
            "wait_ms": statistics.median(self.waits[nearby]) * 1e3,
            "busy_ms": sum(times.values()) / WINDOW / 1e3,
            "launches": sum(counts.values()) / WINDOW,
        }
        print({name: round(value, 2) for name, value in record.items()}, flush=True)
        top = sorted(times, key=lambda name: -times[name])[:16]
        for name in top:
            print(f"    {times[name] / WINDOW / 1e3:8.3f} ms {counts[name] / WINDOW:6.0f} x {name[:90]}", flush=True)
        self.records.append({**record, "kernels_ms": {name: times[name] / WINDOW / 1e3 for name in top}})


def look(model: str, settings: dict[str, object], moments: list[int]) -> list[dict[str, object]]:
    llm = LLM(f"dummy:{model}", max_context=4096, prefix_caching=False, **settings)
    numbers = random.Random(0)
    ins, outs = ([numbers.randint(100, 1024) for _ in range(256)] for _ in range(2))
    made = prompts(ins, llm.spec.vocab_size, 1)
    samplings = [sampling(out, 0.6) for out in outs]
    llm.generate(made, samplings)
    watch = Watch(llm, moments)
    begun = time.perf_counter()
    llm.generate(made, samplings)
    took = time.perf_counter() - begun
    steps = len(watch.walls)
    waited = sum(watch.waits)
    print(f"{model}: {took:.2f} s with the profiler's help, {steps} steps, host waited {waited:.2f} s", flush=True)
    return watch.records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen3-0.6b")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--at", default="4,100,400,800")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    settings: dict[str, object] = {"weights": "fp8", "kv": "fp8"} if arguments.fp8 else {}
    moments = [int(number) for number in arguments.at.split(",")]
    records = {model: look(model, settings, moments) for model in arguments.models.split(",")}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"device": torch.cuda.get_device_name(), "fp8": arguments.fp8, "records": records}, file, indent=2
            )


if __name__ == "__main__":
    main()
