"""A tool's process: `python -m penstock.cli.app.worker PARENT`, its task as one line of JSON on standard input. Not for people.

Runs the command line it is given, as `penstock` would, and answers with lines of JSON: {"progress": share}, then
{"result": ...} or {"fault": message}. Imports come first, so that a process that waits for its task begins it at once.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from penstock.cli.app.blocks import lay_out
from penstock.cli.bench import command as bench
from penstock.cli.bench.config import Config as BenchConfig
from penstock.cli.main import main as run_command
from penstock.cli.simulate import command as simulate
from penstock.console import args
from penstock.errors import PenstockError
from penstock.tools.bench.load import LoadProgress
from penstock.tools.sim.frames import Frames

BENCH_PERIOD_S = 0.5
"""Between two reports of a benchmark at least."""
NICENESS = 15
PR_SET_PDEATHSIG = 1
"""The system's number for: send me a signal when my parent ends."""
CPU_S = 90
MEMORY_BYTES = 6 << 30
C = TypeVar("C")


def main() -> int:
    _end_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # nobody wanted anything
    task = json.loads(line)
    if task["task"] not in ("bench", "profile"):  # these would tell of their own waits, not of the server or the step
        os.nice(NICENESS)
    try:
        _report({"result": TASKS[task["task"]](task)})
    except PenstockError as error:
        _report({"fault": str(error)})
    except MemoryError:
        _report({"fault": "this run takes more memory than a page may have; ask for less"})
    return 0


def _end_with_parent() -> None:
    """Be killed when the server is, even while it makes this process pause: nobody would wake it again. Linux alone can; a
    server that ended before this was said has left its task, and nobody who wants it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.argv[1:] and os.getppid() != int(sys.argv[1]):
        sys.exit(0)


def _command(task: Mapping[str, Any]) -> Any:
    """Any command that prints JSON."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        status = run_command(task["words"])
    text = printed.getvalue()
    if not text.strip():
        lines = filter(str.strip, reversed(errors.getvalue().splitlines()))
        raise PenstockError(next(lines, f"the command ended with {status}").removeprefix("penstock: error: "))
    return json.loads(text)


class _BenchReports:
    """How a benchmark comes along."""

    def __init__(self) -> None:
        self._last: tuple[str, float] = ("", 0.0)

    def say(self, text: str) -> None:
        _report({"progress": {"stage": text}})

    def show(self, name: str, progress: LoadProgress) -> None:
        last_name, last_s = self._last
        if name != last_name or progress.elapsed_s - last_s >= BENCH_PERIOD_S:
            self._last = (name, progress.elapsed_s)
            _report({"progress": {"stage": name, "num_open": progress.num_open, **asdict(progress)}})


def _bench(task: Mapping[str, Any]) -> Any:
    """As `penstock bench --json -`."""
    if task["key"]:
        os.environ["PENSTOCK_API_KEY"] = task["key"]  # where no list of processes shows it
    return bench.measured(_asked(BenchConfig, task), _BenchReports())


def _simulate(task: Mapping[str, Any]) -> dict[str, Any]:
    """As `penstock simulate --json`, and what happened when."""
    config = _asked(simulate.Config, task)
    frames: dict[str, Frames] = {}

    def recorder(strategy: str) -> Frames | None:
        return (
            frames.setdefault(strategy, Frames(lambda share: _report({"progress": share}))) if task["frames"] else None
        )

    outcome = simulate.outcome_of(config, recorder)
    found = {"report": simulate.data_of(config, outcome)}
    return found | ({"frames": {strategy: one.data() for strategy, one in frames.items()}} if frames else {})


def _asked(config: type[C], task: Mapping[str, Any]) -> C:
    return args.build(config, args.parse(config, task["words"]).values)


def _machine(task: Mapping[str, Any]) -> dict[str, Any] | None:
    """What this machine reaches, measured once; nothing if it has not been and may not be now."""
    from penstock.tools.measure.this_machine import find_hardware, known_hardware  # torch, if it has to be measured

    found = find_hardware("this-machine") if task["measures"] else known_hardware()
    return None if found is None else asdict(found)


def _profile(task: Mapping[str, Any]) -> dict[str, Any]:
    """A step of the model that is served, watched part by part."""
    from penstock.cli.bench.step import Config, profiled  # torch
    from penstock.config import ModelConfig

    return profiled(replace(_asked(Config, task), model=ModelConfig(**task["model"])))[2]


TASKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "simulate": _simulate,
    "blocks": lambda task: lay_out(**task["inputs"]),
    "bench": _bench,
    "command": _command,
    "machine": _machine,
    "profile": _profile,
}


def _report(news: Mapping[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(news, allow_nan=False) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main())
