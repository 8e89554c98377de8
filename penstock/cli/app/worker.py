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
from typing import Any

from penstock.cli.app.benchmark import benched
from penstock.cli.app.blocks import lay_out
from penstock.cli.app.simulation import simulated
from penstock.cli.main import main as run_command
from penstock.errors import PenstockError

NICENESS = 15
PR_SET_PDEATHSIG = 1
"""The system's number for: send me a signal when my parent ends."""
CPU_S = 90
MEMORY_BYTES = 6 << 30


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
        _tell({"result": TASKS[task["task"]](task)})
    except PenstockError as error:
        _tell({"fault": str(error)})
    except MemoryError:
        _tell({"fault": "this run takes more memory than a page may have; ask for less"})
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
        return _complaint(errors.getvalue(), status)
    return json.loads(text)


def _bench(task: Mapping[str, Any]) -> Any:
    if task["key"]:
        os.environ["PENSTOCK_API_KEY"] = task["key"]  # where no list of processes shows it
    return benched(task["words"], lambda news: _tell({"progress": news}))


def _complaint(text: str, status: int) -> Any:
    last = next((line for line in reversed(text.splitlines()) if line.strip()), f"the command ended with {status}")
    raise PenstockError(last.removeprefix("penstock: error: "))


def _machine(task: Mapping[str, Any]) -> dict[str, Any] | None:
    """What this machine reaches, measured once; nothing if it has not been and may not be now."""
    from penstock.tools.measure.this_machine import find_hardware, known_hardware  # torch, if it has to be measured

    found = find_hardware("this-machine") if task["measures"] else known_hardware()
    return None if found is None else asdict(found)


def _profile(task: Mapping[str, Any]) -> dict[str, Any]:
    """A step of the model that is served, watched part by part."""
    from penstock.cli.bench.step import Config, profiled  # torch
    from penstock.config import ModelConfig
    from penstock.console import args

    asked = args.build(Config, dict(args.parse(Config, task["words"]).values))
    return profiled(replace(asked, model=ModelConfig(**task["model"])))[2]


TASKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "simulate": lambda task: simulated(task["words"], lambda share: _tell({"progress": share}), task["frames"]),
    "blocks": lambda task: lay_out(**task["inputs"]),
    "bench": _bench,
    "command": _command,
    "machine": _machine,
    "profile": _profile,
}


def _tell(news: Mapping[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(news, allow_nan=False) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main())
