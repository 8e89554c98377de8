"""Times many ways of doing the same thing on a GPU and tells the best of each group.

Kernels are compiled first, by several processes at once; then one process times them, each as a recorded graph that goes round
several sets of inputs so that none is found in the cache. `--dry` runs everything once, small, on the CPU under Triton's
interpreter: that the script is whole can be seen without a GPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

NUM_SETS = 4
NUM_COMPILERS = 10


@dataclass(frozen=True)
class Case:
    """One way (`label`) of doing one thing (`group`). `run` is told which of NUM_SETS sets of inputs to take."""

    group: str
    label: str
    run: Callable[[int], object]
    moved_bytes: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True)
class Place:
    device: torch.device
    is_dry: bool

    def size(self, real: int, dry: int) -> int:
        return dry if self.is_dry else real

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.is_dry else torch.bfloat16


Check = tuple[str, float, float]
"""What was compared, its error relative to the norm, and the most it may be."""


def relative_error(mine: torch.Tensor, reference: torch.Tensor) -> float:
    mine, reference = mine.double(), reference.double()
    return float((mine - reference).norm() / reference.norm())


def run(
    build: Callable[[Place], Sequence[Case]],
    check: Callable[[Place], Sequence[Check]],
    module: str,
    seconds: float = 80.0,
    report: Callable[[Sequence[Case], Sequence[float]], None] | None = None,
) -> None:
    begun = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--only", default="", help="groups whose name holds this")
    parser.add_argument("--json")
    parser.add_argument("--worker", type=int, default=-1)
    arguments = parser.parse_args()
    if arguments.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    place = Place(torch.device("cpu" if arguments.dry else "cuda"), arguments.dry)
    cases = [case for case in build(place) if arguments.only in case.group]
    if arguments.worker >= 0:
        for case in cases[arguments.worker :: NUM_COMPILERS]:
            _try(case)
        return
    if arguments.dry:
        for case in cases:
            case.run(0)
        times = [1e-6] * len(cases)
    else:
        _compile(module, arguments.only)
        print(f"compiled after {time.perf_counter() - begun:.0f} s", flush=True)
        times = []
        for case in cases:
            is_late = time.perf_counter() - begun > seconds
            times.append(float("nan") if is_late else _timed(case))
    checks = check(place)
    for name, error, most in checks:
        print(f"{'ok   ' if error <= most else 'WRONG'} {name}: {error:.2e} (at most {most:.0e})")
    (report or _report)(cases, times)
    if arguments.json:
        record = [{"group": case.group, "label": case.label, "us": took * 1e6} for case, took in zip(cases, times)]
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "times": record}, file)


def _compile(module: str, only: str) -> None:
    command = [sys.executable, "-m", module, "--only", only, "--worker"]
    workers = [subprocess.Popen([*command, str(number)]) for number in range(NUM_COMPILERS)]
    for worker in workers:
        worker.wait()


def _try(case: Case) -> None:
    try:
        case.run(0)
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{case.group} / {case.label}: {type(error).__name__} {str(error)[:200]}", flush=True)


def _timed(case: Case, repeats: int = 7) -> float:
    """Seconds of one run, the median over replays of a graph that runs every set of inputs twice."""
    try:
        for number in range(NUM_SETS):
            case.run(number)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(2 * NUM_SETS):
                case.run(number % NUM_SETS)
        times = []
        for _ in range(repeats + 2):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / (2 * NUM_SETS))
        return statistics.median(times[2:])
    except Exception as error:
        print(f"{case.group} / {case.label}: {type(error).__name__} {str(error)[:200]}", flush=True)
        return float("nan")


def _report(cases: Sequence[Case], times: Sequence[float]) -> None:
    for group in dict.fromkeys(case.group for case in cases):
        ranked = [(took, case) for case, took in zip(cases, times) if case.group == group and took == took]
        cells = []
        for took, case in sorted(ranked, key=lambda pair: pair[0])[:4]:
            rate = f" {case.moved_bytes / took / 1e12:.2f}TB/s" if case.moved_bytes else ""
            rate += f" {case.flops / took / 1e12:.0f}TF" if case.flops else ""
            cells.append(f"{case.label} {took * 1e6:.1f}us{rate}")
        print(f"{group}: " + " | ".join(cells), flush=True)
