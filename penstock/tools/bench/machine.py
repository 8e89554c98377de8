"""Who measured, and what exactly was replayed: facts that a figure is worth nothing without."""

import hashlib
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from penstock.tools.workload.trace import Trace


def describe() -> dict[str, Any]:
    """The machine this client runs on. No name and no address: a report may be published."""
    try:
        own = version("penstock")
    except PackageNotFoundError:
        own = "from source"
    return {
        "penstock": own,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "num_cpus": os.cpu_count() or 0,
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def trace_digest(trace: Trace) -> str:
    """Equal for equal rows, whatever file they came from."""
    digest = hashlib.sha256()
    for column in (trace.times_s, trace.prompt_lengths, trace.answer_lengths, trace.blocks, trace.block_starts):
        digest.update(column.tobytes())
    return digest.hexdigest()[:16]
