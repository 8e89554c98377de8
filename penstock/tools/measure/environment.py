"""The machine we run on, inspected: processors, limits of containers, memory, drivers, folders, ports.

Only gathers; `doctor.checks` judges. What the system does not report is left empty; inspection changes nothing.
"""

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from penstock.config import SchedulerConfig
from penstock.tools.doctor.environment import Environment, Torch

TORCH_S = 30.0
"""Longest that torch may take to start."""
NUM_CLOCK_READS = 1000
UNBOUNDED = 2**60
"""Limits above are none."""


def look_around(port: int) -> Environment:
    """Everything at once; torch starts in a process of its own meanwhile."""
    load, wall_s, steady_s = os.getloadavg()[0], time.time(), time.monotonic()
    probe = subprocess.Popen(
        [sys.executable, "-m", "penstock.tools.measure.torch_probe"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    from penstock.runtime.formats.hub import default_cache
    from penstock.runtime.formats.source import DEFAULT
    from penstock.runtime.formats.store import find_entry

    store = default_cache()
    folder = next(one for one in (store, *store.parents) if one.is_dir())
    temporary = tempfile.gettempdir()
    limits = SchedulerConfig()
    torch_folder = _package_folder("torch")
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = read_meminfo()
    group = ProcessorGroup()
    ops_folder = _package_folder("penstock") / "runtime" / "ops" / "cpu"
    clock_read_s = _clock_read_s()
    torch = _read_probe(probe)
    return Environment(
        python=sys.version_info[:3],
        torch_version=version_of("torch"),
        torch_cuda=torch_cuda(torch_folder / "version.py"),
        torch=torch,
        has_native_file=any(ops_folder.glob("_native*.so")),
        instructions=_instructions(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota_cores=group.quota_cores,
        throttled_fraction=group.throttled_fraction,
        load=load,
        clock_read_s=clock_read_s,
        clock_drift_s=abs((time.time() - wall_s) - (time.monotonic() - steady_s)),
        available_bytes=min(memory.get("MemAvailable", UNBOUNDED), group.free_bytes),
        swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        num_gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        driver_cuda=_driver_cuda(),
        store=str(store),
        store_fault=_fault_of_writing(folder),
        store_free_bytes=shutil.disk_usage(folder).free,
        has_default_model=find_entry(store, str(DEFAULT)) is not None,
        temporary=temporary,
        temporary_fault=_fault_of_socket(temporary),
        max_files=UNBOUNDED if max_files == resource.RLIM_INFINITY else max_files,
        max_connections=limits.max_waiting + limits.max_sequences,
        port=port,
        port_fault=_fault_of_listening(port),
    )


class ProcessorGroup:
    """The container we are in: the tightest of its limits and of those around it, of either version of the interface."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> None:
        self._root = root
        self._paths: dict[str, str] = {}
        for line in text_of(membership).splitlines():
            _, controllers, path = line.split(":", 2)
            self._paths |= dict.fromkeys(controllers.split(","), path)

    @property
    def quota_cores(self) -> float | None:
        quotas = []
        for folder in self._folders("cpu"):
            words = text_of(folder / "cpu.max").split()
            words = words or [text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")]
            quota, period = map(_number, [*words, "", ""][:2])
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
        return min(quotas, default=None)

    @property
    def periods(self) -> tuple[int, int] | None:
        """In which its time is counted, and of those in which it ran out; of the limit that bites most."""
        found = []
        for folder in self._folders("cpu"):
            words = text_of(folder / "cpu.stat").split()
            counts = dict(zip(words[::2], words[1::2], strict=False))
            periods, throttled = _number(counts.get("nr_periods", "")), _number(counts.get("nr_throttled", ""))
            if periods and throttled is not None:
                found.append((periods, throttled))
        return max(found, key=lambda one: one[1] / one[0], default=None)

    @property
    def throttled_fraction(self) -> float | None:
        return None if self.periods is None else self.periods[1] / self.periods[0]

    @property
    def free_bytes(self) -> int:
        free = [UNBOUNDED]
        for folder in self._folders("memory"):
            for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
                limit, usage = _number(text_of(folder / most)), _number(text_of(folder / used))
                if limit is not None and usage is not None and limit < UNBOUNDED:
                    free.append(max(limit - usage, 0))
        return min(free)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Ours, then those around it. A container may see its own as the root, whatever it is called outside."""
        base = self._root / controller if (self._root / controller).is_dir() else self._root
        path = Path(self._paths.get(controller, self._paths.get("", "/")).strip("/"))
        yield from (base / one for one in (path, *path.parents) if (base / one).is_dir())


def read_meminfo(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Bytes by name."""
    rows = (line.split() for line in text_of(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[1].isdecimal()}


def torch_cuda(path: Path) -> str:
    """CUDA that torch was built for, from the file that says so: it can be read even if torch does not start."""
    found = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text_of(path), re.MULTILINE)
    return found[1] if found else ""


def _read_probe(probe: "subprocess.Popen[str]") -> Torch:
    try:
        out, errors = probe.communicate(timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.communicate()
        return Torch(fault=f"does not start within {TORCH_S:.0f} s")
    if probe.returncode < 0:
        return Torch(fault=f"is ended by {signal.Signals(-probe.returncode).name} as it starts")
    if probe.returncode:
        return Torch(fault=(errors.strip().splitlines() or ["does not start"])[-1])
    return Torch(**json.loads(out))


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")


def version_of(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _instructions() -> frozenset[str]:
    found = re.search(r"^flags\s*:(.*)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(found[1].split() if found else ())


def _driver_cuda() -> str:
    """What the driver library itself says; it is asked for nothing that would wake a GPU."""
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if number.value else ""


def _clock_read_s() -> float:
    start_s = time.perf_counter()
    for _ in range(NUM_CLOCK_READS):
        time.monotonic()
    return (time.perf_counter() - start_s) / NUM_CLOCK_READS


def _fault_of_writing(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def _fault_of_socket(folder: str) -> str:
    """As the engine's process does it: a folder of our own, and in it a socket."""
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-", dir=folder) as own, socket.socket(socket.AF_UNIX) as one:
            one.bind(str(Path(own) / "commands"))
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _fault_of_listening(port: int) -> str:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or type(error).__name__
    return ""


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
