"""NVIDIA's management library, which comes with the driver, called as it is: no package has to be installed for it.

Methods have the names of the library's functions without `nvml`. What a GPU or a driver does not know raises OSError.
"""

import ctypes
from ctypes import Structure, byref, c_char, c_char_p, c_double, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
XID_EVENTS = 8
MAX_PROCESSES = 128
NUM_METRICS = 512
"""More than any version of the library has."""
DRAM_USE = 10
"""Which of them is the share of its memory's bandwidth that a GPU used."""

NUMBERS: dict[str, tuple[str, type[Any]]] = {
    "DeviceGetClockInfo": ("", c_uint),
    "DeviceGetMaxClockInfo": ("", c_uint),
    "DeviceGetMemoryBusWidth": ("", c_uint),
    "DeviceGetPowerUsage": ("", c_uint),
    "DeviceGetEnforcedPowerLimit": ("", c_uint),
    "DeviceGetTemperature": ("", c_uint),
    "DeviceGetCurrPcieLinkWidth": ("", c_uint),
    "DeviceGetMaxPcieLinkWidth": ("", c_uint),
    "DeviceGetCurrentClocksThrottleReasons": ("", c_ulonglong),
    "DeviceGetTotalEnergyConsumption": ("", c_ulonglong),
    "DeviceGetTotalEccErrors": ("", c_ulonglong),
    "DeviceGetHandleByIndex": ("_v2", c_void_p),
    "DeviceGetCount": ("_v2", c_uint),
    "EventSetCreate": ("", c_void_p),
    "GpmSampleAlloc": ("", c_void_p),
}
"""Functions whose last argument takes the one number they tell: the version of their name, and what that number is."""


class GpuMemory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class GpuUse(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class GpuProcess(Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("instance", c_uint), ("compute", c_uint))


class GpuEvent(Structure):
    _fields_ = (("device", c_void_p), ("kind", c_ulonglong), ("data", c_ulonglong), ("rest", c_char * 16))


class GpmMetric(Structure):
    _fields_ = (("id", c_uint), ("status", c_int), ("value", c_double), ("names", c_char_p * 3))


class GpmMetrics(Structure):
    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("before", c_void_p),
        ("after", c_void_p),
        ("metrics", GpmMetric * NUM_METRICS),
    )


class Process(NamedTuple):
    pid: int
    used_bytes: int


class Nvml:
    def __init__(self, library: Any = None) -> None:
        """Raises OSError where there is no driver. `library` stands in for it in tests."""
        self._library = ctypes.CDLL(LIBRARY) if library is None else library
        self._samples: dict[int, c_void_p] = {}
        """By handle: how a GPU stood when its memory was last asked about."""
        self._call("Init_v2")

    def number(self, name: str, *arguments: Any) -> int:
        version, kind = NUMBERS[name]
        found = kind()
        self._call(name + version, *arguments, byref(found))
        return int(found.value or 0)

    def handles(self) -> list[c_void_p]:
        count = self.number("DeviceGetCount")
        return [c_void_p(self.number("DeviceGetHandleByIndex", index)) for index in range(count)]

    def memory(self, handle: c_void_p) -> GpuMemory:
        found = GpuMemory()
        self._call("DeviceGetMemoryInfo", handle, byref(found))
        return found

    def use(self, handle: c_void_p) -> GpuUse:
        found = GpuUse()
        self._call("DeviceGetUtilizationRates", handle, byref(found))
        return found

    def processes(self, handle: c_void_p) -> list[Process]:
        count, found = c_uint(MAX_PROCESSES), (GpuProcess * MAX_PROCESSES)()
        self._call("DeviceGetComputeRunningProcesses_v3", handle, byref(count), found)
        unknown = 2**64 - 1
        return [Process(one.pid, 0 if one.used == unknown else one.used) for one in found[: count.value]]

    def dram_use(self, handle: c_void_p) -> float:
        """Share of its memory's bandwidth that a GPU has used since this was last asked; 0 at first."""
        sample = c_void_p(self.number("GpmSampleAlloc"))
        self._call("GpmSampleGet", handle, sample)
        before = self._samples.get(handle.value or 0)
        self._samples[handle.value or 0] = sample
        if before is None:
            return 0.0
        asked = GpmMetrics(1, 1, before, sample)
        asked.metrics[0].id = DRAM_USE
        self._call("GpmMetricsGet", byref(asked))
        self._call("GpmSampleFree", before)
        if asked.metrics[0].status:
            raise OSError(f"GpmMetricsGet: {asked.metrics[0].status}")
        return float(asked.metrics[0].value) / 100.0

    def listen(self, handles: list[c_void_p]) -> c_void_p:
        """What tells of faults that the driver reports."""
        events = c_void_p(self.number("EventSetCreate"))
        for handle in handles:
            self._call("DeviceRegisterEvents", handle, c_ulonglong(XID_EVENTS), events)
        return events

    def next_event(self, events: c_void_p) -> bool:
        """Whether there was one; it is gone then."""
        try:
            self._call("EventSetWait_v2", events, byref(GpuEvent()), 0)
        except OSError:  # a timeout of no time: nothing more happened
            return False
        return True

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, f"nvml{name}", None)
        status = None if function is None else function(*arguments)
        if status != 0:
            raise OSError(f"nvml{name}: {'not in this driver' if status is None else f'status {status}'}")
