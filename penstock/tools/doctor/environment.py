"""What was found on a machine: values only, gathered by the command line and judged by `checks`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What a process that imports torch found."""

    device: str = ""
    """Name of the device that `--device auto` takes."""
    is_cuda: bool = False
    free_bytes: int = 0
    """On that device."""
    num_threads: int = 0
    kernels: str = ""
    """What the native CPU library runs; empty where it does not load."""
    fault: str = ""
    """Why nothing was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """None and empty where the system does not report it."""

    python: tuple[int, int, int]
    torch_version: str
    torch_cuda: str
    """CUDA that torch was built for."""
    torch: Torch
    has_native_file: bool
    """The native library was built, whether or not it loads."""
    instructions: frozenset[str]
    """The processor's, as the kernel names them."""

    num_cores: int
    """Cores that this process may run on."""
    quota_cores: float | None
    """Cores' worth of time that a container may use."""
    throttled_fraction: float | None
    """Periods in which the container ran out of that time."""
    load: float
    """Processes that ran or wanted to, in the mean of the last minute."""
    clock_read_s: float
    """What a look at the clock costs."""
    clock_drift_s: float
    """How far the wall clock and the steady one parted while we looked."""

    available_bytes: int
    """Memory that could be had, a container's limit heeded."""
    swap_used_bytes: int
    num_gpus: int
    driver_cuda: str
    """Newest CUDA that the driver runs."""

    store: str
    store_fault: str
    """Why nothing can be written there."""
    store_free_bytes: int
    has_default_model: bool
    temporary: str
    temporary_fault: str
    """Why no private socket can be made there."""
    max_files: int
    """Files that a process may open, once it raises its limit as far as it may."""
    max_connections: int
    """Calls that the server admits by default."""
    port: int
    port_fault: str
    """Why the server could not listen there."""
