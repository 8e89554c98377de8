"""The machine a model runs on: its name, its free memory, the number type it computes in."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from penstock.config import DType
from penstock.errors import ConfigError
from penstock.runtime import preload
from penstock.runtime.execution.parallel.machine.processors import pin

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class CpuDevice:
    num_threads: int

    @property
    def name(self) -> str:
        return f"CPU, {self.num_threads} threads, {torch.backends.cpu.get_cpu_capability()}"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def free_bytes(self) -> int:
        """Memory that weights, cache and workspace could take now."""
        return min(_available_bytes(), _group_bytes())

    def dtype(self, asked: DType) -> torch.dtype:
        """float32 unless asked otherwise: exact, and on most CPUs the fastest."""
        return torch.float32 if asked == "auto" else DTYPES[asked]


@dataclass(frozen=True, slots=True)
class CudaDevice:
    @property
    def name(self) -> str:
        return torch.cuda.get_device_name()

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda")

    @property
    def free_bytes(self) -> int:
        """What the driver has free, and what torch holds of it without using it."""
        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def dtype(self, asked: DType) -> torch.dtype:
        return torch.bfloat16 if asked == "auto" else DTYPES[asked]


Device = CpuDevice | CudaDevice


@cache
def usual_threads() -> int:
    """Torch's threads before the first model of this process was loaded."""
    return torch.get_num_threads()


def rest_torch() -> None:
    """From here on a native library's threads do the work; torch's, which wait for more by spinning, would be in their way."""
    torch.set_num_threads(1)


def wake_torch() -> int:
    """Give torch its threads back, for another model of this process is about to be loaded; returns their number."""
    usual = usual_threads()
    if torch.get_num_threads() == 1:
        torch.set_num_threads(usual)
    return torch.get_num_threads()


def open_device(asked: str) -> Device:
    has_cuda = torch.cuda.is_available()
    if asked == "cuda" and not has_cuda:
        raise ConfigError("--device cuda was asked for but torch finds no CUDA device; check the driver, or choose cpu")
    if not has_cuda or asked == "cpu":
        preload.end_compilers()
        return CpuDevice(wake_torch())
    if find_spec("triton") is not None:
        from penstock.runtime.ops.triton.host.compile_ahead import prepare

        prepare()  # it is done by the time the weights are
    return CudaDevice()


def num_devices(device: Device) -> int | None:
    """Devices of its kind that ranks can have one each of; None where they share one."""
    return torch.cuda.device_count() if device.torch_device.type == "cuda" else None


def settle(device: Device, index: int, count: int, *, shares_gpu: bool = False) -> Device:
    """One rank's of `count` on this machine: a GPU of its own, or its share of the processor's threads, near their memory."""
    if device.torch_device.type == "cuda":
        torch.cuda.set_device(0 if shares_gpu else index)
        return device
    num_threads = max(1, torch.get_num_threads() // count)
    num_cores = pin(index, count) if count > 1 else None
    num_threads = num_threads if num_cores is None else min(num_threads, num_cores)
    torch.set_num_threads(num_threads)
    return CpuDevice(num_threads)


def _available_bytes() -> int:
    """What the machine could give without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What is left of a container's limit; without one, more than any machine has."""
    try:
        limit = (root / "memory.max").read_text().strip()
        return 2**62 if limit == "max" else int(limit) - int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
