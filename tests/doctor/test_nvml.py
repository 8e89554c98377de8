"""What a server tells of its GPU comes from the driver's library, and what that does not know is left out."""

from ctypes import c_void_p, cast
from typing import Any

from penstock.metrics.exposition import exposition
from penstock.tools.measure.nvml import Nvml
from penstock.tools.measure.signals import GpuSignals

GIB = 1 << 30


NUMBERS = {
    "nvmlDeviceGetCount_v2": 1, "nvmlDeviceGetHandleByIndex_v2": 4711, "nvmlDeviceGetMaxClockInfo": 2000,
    "nvmlDeviceGetMemoryBusWidth": 4096, "nvmlEventSetCreate": 99, "nvmlDeviceGetTotalEnergyConsumption": 7000,
}  # fmt: skip
METHODS = {
    "nvmlInit_v2": "init",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetUtilizationRates": "use",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceRegisterEvents": "register",
    "nvmlEventSetWait_v2": "wait",
    "nvmlGpmSampleAlloc": "new_sample",
    "nvmlGpmSampleGet": "take_sample",
    "nvmlGpmSampleFree": "free_sample",
    "nvmlGpmMetricsGet": "compare",
}


class Driver:
    """The library's functions as far as this GPU has them: each fills in what its last argument points to."""

    def __init__(self) -> None:
        self.samples = 0
        self.freed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return getattr(self, METHODS[name])
        if name not in NUMBERS:
            raise AttributeError(name)
        return lambda *arguments: self.fill(arguments[-1], NUMBERS[name])

    @staticmethod
    def fill(reference: Any, value: int) -> int:
        reference._obj.value = value
        return 0

    def init(self) -> int:
        return 0

    def memory(self, _: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = 30 * GIB, 80 * GIB
        return 0

    def use(self, _: Any, use: Any) -> int:
        return 3  # not supported

    def processes(self, _: Any, count: Any, processes: Any) -> int:
        count._obj.value = 2
        processes[0].pid, processes[0].used = 1, 5 * GIB
        processes[1].pid, processes[1].used = 2, 2**64 - 1
        return 0

    def register(self, *_: Any) -> int:
        return 0

    def wait(self, *_: Any) -> int:
        return 10  # nothing in time

    def new_sample(self, sample: Any) -> int:
        self.samples += 1
        return self.fill(sample, self.samples)

    def take_sample(self, *_: Any) -> int:
        return 0

    def free_sample(self, sample: Any) -> int:
        self.freed.append(cast(sample, c_void_p).value or 0)
        return 0

    def compare(self, asked: Any) -> int:
        assert (asked._obj.before, asked._obj.after) == (self.samples - 1, self.samples)
        asked._obj.metrics[0].value = 25.0
        return 0


def test_a_page_tells_memory_and_bandwidth_and_leaves_out_what_the_driver_does_not_know() -> None:
    driver = Driver()
    signals = GpuSignals(Nvml(driver))
    signals.metrics()
    page = exposition(signals.metrics(), {})
    for line in (
        f'penstock_gpu_memory_used_bytes{{gpu="0"}} {30 * GIB}',
        f'penstock_gpu_other_bytes{{gpu="0"}} {5 * GIB}',
        'penstock_gpu_memory_peak_bytes_per_second{gpu="0"} 2048000000000',
        'penstock_gpu_memory_bytes_per_second{gpu="0"} 512000000000',
        'penstock_gpu_energy_joules_total{gpu="0"} 7',
        "penstock_gpu_xid_errors_total 0",
    ):
        assert any(found.startswith(line) for found in page.splitlines()), line
    assert "utilisation" not in page
    assert "temperature" not in page
    assert driver.freed == [1], "a sample is kept until the next and no longer"


def test_without_a_driver_there_is_nothing_to_tell() -> None:
    assert GpuSignals().metrics() == []
