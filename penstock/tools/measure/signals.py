"""What a machine says of itself while it serves: processors, limits of containers, swap, energy, GPUs; as metrics.

Each reading is of /proc, /sys or the GPU's management library (NVML), none of which wakes a GPU or takes a millisecond. What
cannot be read is left out.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.metrics.exposition import Counter, Gauge, Labels, Metric
from penstock.tools.measure.environment import ProcessorGroup, text_of
from penstock.tools.measure.nvml import Nvml
from penstock.tools.measure.this_machine import known_hardware

SLOW_GOVERNORS = ("powersave", "conservative")
GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
LIMITS = {"power": 0x4 | 0x80, "thermal": 0x20 | 0x40, "sync": 0x10}
"""Bits of the reasons for which a GPU's clocks are held down."""
GAUGES = (
    ("clock_hertz", "Clock of the multiprocessors", "ClockInfo", (1,), 1e6),
    ("max_clock_hertz", "Highest clock of the multiprocessors", "MaxClockInfo", (1,), 1e6),
    ("power_watts", "Power it takes", "PowerUsage", (), 1e-3),
    ("power_limit_watts", "Power it may take", "EnforcedPowerLimit", (), 1e-3),
    ("temperature_celsius", "Temperature of the chip", "Temperature", (0,), 1.0),
    ("pcie_width", "Lanes to the host", "CurrPcieLinkWidth", (), 1.0),
    ("max_pcie_width", "Lanes that it could have", "MaxPcieLinkWidth", (), 1.0),
)
"""Of a GPU: the function that tells each, what it is asked, and times what that is the metric."""
FIRST_TICKS = 8
"""Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""


class HostSignals:
    """`root` stands in for the file system in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._group = ProcessorGroup(root / "sys/fs/cgroup", root / "proc/self/cgroup")

    def metrics(self) -> list[Metric]:
        return [*self._processors(), *self._limits(), *self._memory(), *self._energy()]

    def _processors(self) -> Iterator[Metric]:
        ticks = [int(word) for word in self._text("proc/stat").split("\n")[0].split()[1 : 1 + FIRST_TICKS]]
        if len(ticks) == FIRST_TICKS:
            per_s = os.sysconf("SC_CLK_TCK")
            busy = sum(ticks) - ticks[3] - ticks[4] - ticks[7]
            own_s, waited_s = self._own_s()
            if waited_s is not None:
                help = "Seconds in which own threads were ready and did not run"
                yield _counted("penstock_host_waiting_seconds", help, waited_s)
            counter = Counter("penstock_host_processor_seconds", "Seconds of all processors, by who used them")
            counter.add(own_s, (("use", "own"),))
            counter.add(max(busy / per_s - own_s, 0.0), (("use", "other"),))
            counter.add(ticks[7] / per_s, (("use", "stolen"),))
            counter.add((ticks[3] + ticks[4]) / per_s, (("use", "idle"),))
            yield counter
        governors = [path.read_text().strip() for path in self._root.glob(GOVERNORS)]
        if governors:
            slow = sum(one in SLOW_GOVERNORS for one in governors) / len(governors)
            yield _gauge("penstock_host_slow_governor", "Share of the processors that save power", slow)
        if self._num_nodes:
            yield _gauge("penstock_host_numa_nodes", "Memory nodes of this machine", self._num_nodes)

    @property
    def _num_nodes(self) -> int:
        return len(list(self._root.glob("sys/devices/system/node/node[0-9]*")))

    def _own_s(self) -> tuple[float, float | None]:
        """Of this process and all that it started: seconds computed, and seconds that threads waited for a processor, where
        the system counts them."""
        total, waited_ns = 0.0, list[int]()
        for pid in own_processes(self._root):
            fields = self._text(f"proc/{pid}/stat").rpartition(")")[2].split()
            if len(fields) > 13:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            for path in self._root.glob(f"proc/{pid}/task/*/schedstat"):
                words = text_of(path).split()
                waited_ns += [int(words[1])] if len(words) == 3 else []
        return total, sum(waited_ns) / 1e9 if waited_ns else None

    def _limits(self) -> Iterator[Metric]:
        periods = self._group.periods
        if periods is not None:
            help = "Periods in which a container's processor time is counted"
            yield _counted("penstock_host_periods", help, periods[0])
            yield _counted("penstock_host_throttled_periods", "Of those, in which it ran out", periods[1])

    def _memory(self) -> Iterator[Metric]:
        rows = dict(line.split(maxsplit=1) for line in self._text("proc/vmstat").splitlines() if " " in line)
        if "pswpin" in rows:
            pages = int(rows["pswpin"]) + int(rows.get("pswpout", 0))
            yield _counted("penstock_host_swapped_pages", "Pages moved to or from swap", pages)
        if "numa_other" in rows and self._num_nodes > 1:
            for name in ("numa_local", "numa_other"):
                help, label = "Pages given, by where they lie", (("where", name.removeprefix("numa_")),)
                yield _counted("penstock_host_numa_pages", help, int(rows[name]), label)

    def _energy(self) -> Iterator[Metric]:
        joules = 0.0
        for path in self._root.glob("sys/class/powercap/intel-rapl:[0-9]*/energy_uj"):
            with contextlib.suppress(OSError, ValueError):
                joules += int(path.read_text()) / 1e6 if path.parent.name.count(":") == 1 else 0.0
        if joules:
            yield _counted("penstock_host_energy_joules", "Energy that the processors took", joules)

    def _text(self, name: str) -> str:
        return text_of(self._root / name)


class GpuSignals:
    """Through NVML. `nvml` stands in for it in tests."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml: Nvml | None = None
        self._handles: list[Any] = []
        self._events: Any = None
        self._num_xids = 0
        with contextlib.suppress(OSError):  # no driver, no GPU: nothing to read
            self._nvml = nvml or Nvml()
            self._handles = self._nvml.handles()
            self._events = self._nvml.listen(self._handles)

    def metrics(self) -> list[Metric]:
        found: list[Metric] = []
        for number, handle in enumerate(self._handles):
            labels = (("gpu", str(number)),)
            found += [_gauge(f"penstock_gpu_{name}", help, value, labels) for name, help, value in self._gauges(handle)]
            found += self._counters(handle, labels)
        if self._events is not None and self._nvml is not None:
            while self._nvml.next_event(self._events):
                self._num_xids += 1
            found.append(_counted("penstock_gpu_xid_errors", "Faults that the driver reported (Xid)", self._num_xids))
        return found

    def _gauges(self, handle: Any) -> Iterator[tuple[str, str, float]]:
        for name, help, function, arguments, factor in GAUGES:
            value = self._ask(f"DeviceGet{function}", handle, *arguments)
            if value is not None:
                yield name, help, value * factor
        yield from self._memory(handle)
        reasons = self._ask("DeviceGetCurrentClocksThrottleReasons", handle)
        if reasons is not None:
            for by, bits in LIMITS.items():
                yield f"limited_by_{by}", f"1 while clocks are held down by {by}", float(bool(int(reasons) & bits))

    def _memory(self, handle: Any) -> Iterator[tuple[str, str, float]]:
        memory, use, dram, processes = (
            self._value(name, handle) for name in ("memory", "use", "dram_use", "processes")
        )
        if memory is not None:
            yield "memory_used_bytes", "Memory in use, by whomever", float(memory.used)
            yield "memory_total_bytes", "Memory it has", float(memory.total)
        if use is not None:
            yield "utilisation", "Share of the time in which some kernel ran", use.gpu / 100.0
            yield "memory_utilisation", "Share of the time in which memory was read", use.memory / 100.0
        if processes is not None:
            own = set(own_processes(Path("/")))
            others = float(sum(one.used_bytes for one in processes if one.pid not in own))
            yield "other_bytes", "Memory that other programs hold", others
        clock, bits = self._ask("DeviceGetMaxClockInfo", handle, 2), self._ask("DeviceGetMemoryBusWidth", handle)
        if clock is not None and bits is not None:
            peak = clock * 1e6 * 2 * bits / 8
            yield "memory_peak_bytes_per_second", "Bytes a second that its memory could move", peak
            if dram is not None:
                help = "Bytes a second that its memory moved since this page was last read"
                yield "memory_bytes_per_second", help, dram * peak

    def _counters(self, handle: Any, labels: Labels) -> Iterator[Metric]:
        energy = self._ask("DeviceGetTotalEnergyConsumption", handle)
        if energy is not None:
            yield _counted("penstock_gpu_energy_joules", "Energy that the GPU took", energy / 1e3, labels)
        errors = self._ask("DeviceGetTotalEccErrors", handle, 1, 0)
        if errors is not None:
            yield _counted("penstock_gpu_ecc_errors", "Memory errors that could not be corrected", errors, labels)

    def _ask(self, name: str, *arguments: Any) -> float | None:
        found = self._value("number", name, *arguments)
        return None if found is None else float(found)

    def _value(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, method)(*arguments)
        except OSError:  # not supported by this GPU, or not allowed here
            return None


def machine_metrics() -> Callable[[], list[Metric]]:
    """All of it, and what the machine was measured to reach."""
    host, gpu, reaches = HostSignals(), GpuSignals(), known_hardware()

    def read() -> list[Metric]:
        found = [*host.metrics(), *gpu.metrics()]
        if reaches is not None:
            ceilings = reaches.achievable
            flops = max(ceilings.flops.bf16, ceilings.flops.int8, ceilings.flops.fp32)
            rate, help = ceilings.bandwidth_bytes_per_s, "Bytes a second this machine was measured to read"
            found.append(_gauge("penstock_machine_bytes_per_second", help, rate))
            found.append(_gauge("penstock_machine_flops", "Operations a second it was measured to compute", flops))
        return found

    return read


def own_processes(root: Path) -> Iterator[int]:
    """This process and all that it started, whichever thread did."""
    pending, seen = [os.getpid()], set[int]()
    while pending:
        pid = pending.pop()
        if pid not in seen:
            seen.add(pid)
            yield pid
            for path in root.glob(f"proc/{pid}/task/*/children"):
                pending += map(int, text_of(path).split())


def _gauge(name: str, help: str, value: float, labels: Labels = ()) -> Gauge:
    return Gauge(name, help, lambda: value, labels)


def _counted(name: str, help: str, value: float, labels: Labels = ()) -> Counter:
    counter = Counter(name, help)
    counter.add(value, labels)
    return counter
