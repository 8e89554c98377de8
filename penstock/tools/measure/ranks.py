"""All-reduces between ranks of this machine, measured and kept: what simulator and planner charge layouts of several ranks."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.console.files import write_file
from penstock.tools.cost.measured.all_reduce import AllReduce, read_all_reduce

LOGGER = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "penstock.runtime.execution.parallel.machine.timing")
MOST_S = 120.0


def measure_all_reduce(facts: dict[str, Any]) -> tuple[AllReduce, ...]:
    """By two ranks of this machine, the way that ranks take first; none where there is one device, or it goes wrong."""
    is_gpu = bool(facts["gpus"])
    if (len(facts["gpus"]) if is_gpu else facts["num_processors"]) < 2:
        return ()
    words = [*COMMAND, "cuda" if is_gpu else "cpu"]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=MOST_S, check=True)
        return tuple(read_all_reduce(json.loads(line)) for line in done.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        LOGGER.warning("penstock: all-reduces between ranks could not be measured: %s", error)
        return ()


def keep_all_reduce(path: Path, found: tuple[AllReduce, ...]) -> None:
    if found:
        write_file(path, json.dumps([each.as_data() for each in found], indent=1) + "\n")


def kept_all_reduce(path: Path) -> AllReduce | None:
    """The way that ranks take here, as it was measured; None if it was not, or cannot be read."""
    try:
        first, *_ = json.loads(path.read_text(encoding="utf-8"))
        return read_all_reduce(first)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
