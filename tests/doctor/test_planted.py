"""Planted faults: with all the symptoms that a fault brings along, its cause stands first in the report."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cli.fleet.guided import guide
from penstock.metrics.exposition import exposition
from penstock.metrics.page import Page, parse_page
from penstock.tools.doctor.page import measures_of
from penstock.tools.doctor.rule import diagnose
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import Signs, page_signs
from penstock.tools.measure.nvml import Process
from penstock.tools.measure.signals import GpuSignals, HostSignals
from tests.doctor.test_rules import HEALTHY

SICK = replace(
    HEALTHY, itl_p50_s=0.3, itl_p99_s=3.0, queue_p95_s=4.0, num_waiting_before=1.0, num_waiting=60.0, prefill_mean_s=2.5
)
"""What a server shows that is too slow for its load, whatever the cause."""
WINDOW_S = 10.0


def machine_signs(before: Page, after: Page, window_s: float) -> dict[str, float]:
    """What a machine's own metrics tell, by name of the sign."""
    signs = page_signs(before, after, window_s)
    return {sign.name: getattr(signs, sign.name) for sign, _ in measures_of(Signs) if sign.metadata["of_machine"]}


class Machine:
    """A file system as the kernel shows it, and what happens to it within a window."""

    def __init__(self, root: Path) -> None:
        self.root = root
        per_s = os.sysconf("SC_CLK_TCK")
        self.ticks = [int(5 * per_s), 0, 0, int(15 * per_s), 0, 0, 0, 0]
        self.counts = {"nr_periods": 100, "nr_throttled": 0}
        self.swapped = self.waited_ns = 0
        self.write("proc/self/cgroup", "0::/")
        self.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
        self.show()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def show(self) -> None:
        self.write("proc/stat", f"cpu  {' '.join(map(str, self.ticks))} 0 0\n")
        self.write(f"proc/{os.getpid()}/stat", f"1 (x) {' '.join(['0'] * 11)} 0 0 0")
        self.write("sys/fs/cgroup/cpu.stat", "\n".join(f"{name} {count}" for name, count in self.counts.items()))
        self.write(f"proc/{os.getpid()}/task/{os.getpid()}/schedstat", f"1 {self.waited_ns} 1")
        self.write("proc/vmstat", f"pswpin {self.swapped}\npswpout 0\n")

    def page(self) -> Page:
        self.show()
        return parse_page(exposition(HostSignals(self.root).metrics(), {}))


def steal(machine: Machine) -> None:
    machine.ticks[7] += 400


def occupy(machine: Machine) -> None:
    machine.ticks[0] += 900
    machine.waited_ns += 5 * 10**9


def throttle(machine: Machine) -> None:
    machine.counts["nr_throttled"] += 60


def swap(machine: Machine) -> None:
    machine.swapped += 90_000


def save_power(machine: Machine) -> None:
    machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")


@pytest.mark.parametrize(
    ("plant", "name", "symptoms"),
    [
        (throttle, "throttled", SICK),
        (steal, "stolen", SICK),
        (swap, "swapping", SICK),
        (occupy, "neighbours", replace(SICK, num_waiting=1.0)),
        (save_power, "governor", replace(HEALTHY, itl_p50_s=0.3)),
    ],
)
def test_what_a_machine_does_to_a_server_is_named_first(tmp_path: Path, plant, name: str, symptoms) -> None:
    machine = Machine(tmp_path)
    before = machine.page()
    plant(machine)
    machine.ticks[3] += 1000
    machine.counts["nr_periods"] += 100
    found = {name: value for name, value in machine_signs(before, machine.page(), WINDOW_S).items() if value == value}
    assert diagnose(replace(symptoms, **found), RULES).findings[0].id == name
    assert diagnose(replace(HEALTHY, **machine_signs(before, before, WINDOW_S)), RULES).findings == ()


class FakeNvml:
    """NVML as far as it is asked, with a fault planted."""

    def __init__(self, **faults: float) -> None:
        self.values = {
            "DeviceGetClockInfo": 1900.0, "DeviceGetMaxClockInfo": 1980.0, "DeviceGetPowerUsage": 500_000.0,
            "DeviceGetEnforcedPowerLimit": 700_000.0, "DeviceGetTemperature": 60.0, "DeviceGetCurrPcieLinkWidth": 16.0,
            "DeviceGetMaxPcieLinkWidth": 16.0, "DeviceGetCurrentClocksThrottleReasons": 0,
            "DeviceGetTotalEnergyConsumption": 5_000_000.0, "DeviceGetTotalEccErrors": 0.0,
        } | faults  # fmt: skip
        self.num_events = int(self.values.pop("events", 0))

    def handles(self) -> list[str]:
        return ["gpu"]

    def number(self, name: str, *_: object) -> float:
        if name not in self.values:
            raise OSError(name)
        return self.values[name]

    def memory(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(used=60 << 30, total=80 << 30)

    def use(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(gpu=90, memory=40)

    def dram_use(self, _: object) -> float:
        return 0.5

    def processes(self, _: object) -> list[Process]:
        return [Process(1, int(self.values.get("others", 0))), Process(os.getpid(), 9)]

    def listen(self, _: object) -> str:
        return "events"

    def next_event(self, _: object) -> bool:
        self.num_events -= 1
        return self.num_events >= 0


@pytest.mark.parametrize(
    ("faults", "name", "symptoms"),
    [
        ({"DeviceGetCurrentClocksThrottleReasons": 0x40}, "gpu-hot", SICK),
        ({"DeviceGetTotalEccErrors": 3.0}, "gpu-ecc", SICK),
        ({"events": 2}, "gpu-xid", SICK),
        ({"DeviceGetCurrPcieLinkWidth": 4.0}, "gpu-pcie", SICK),
        ({"others": 20 << 30}, "gpu-shared", SICK),
        ({"DeviceGetCurrentClocksThrottleReasons": 0x4}, "gpu-power", HEALTHY),
    ],
)
def test_what_a_gpu_suffers_is_named_first(faults, name: str, symptoms) -> None:
    page = parse_page(exposition(GpuSignals(FakeNvml(**faults)).metrics(), {}))
    found = {name: value for name, value in machine_signs(page, page, WINDOW_S).items() if value == value}
    assert diagnose(replace(symptoms, **found), RULES).findings[0].id == name


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        (
            {"max_batch_tokens": 32.0, "prompt_mean_tokens": 2000.0, "prefill_mean_s": 1.9, "ttft_p95_s": 3.0},
            "small-steps",
        ),
        (
            {"num_waiting_before": 9.0, "num_waiting": 9.0, "kv_usage_fraction": 0.99, "preemptions_per_s": 2.0},
            "kv-full",
        ),
        ({"weight_bits": 32.0, "itl_p50_s": 0.25}, "wide-weights"),
        ({"hit_fraction": 0.01, "prompt_mean_tokens": 2000.0, "prefill_mean_s": 1.0}, "cache-misses"),
        ({"num_unread_before": 8.0, "num_unread": 9.0}, "slow-readers"),
    ],
)
def test_what_is_set_wrong_is_named_first(planted: dict[str, float], name: str) -> None:
    assert diagnose(replace(HEALTHY, **planted), RULES).findings[0].id == name


def test_the_loop_tells_what_is_gone_and_what_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    signs = [replace(SICK, throttled_fraction=0.4), SICK, HEALTHY]
    looks = iter(diagnose(one, RULES).findings for one in signs)
    assert guide("http://x", lambda: next(looks), 1.0, lambda _: "") == 0
    told = capsys.readouterr().out
    assert told.index("first: the container runs out") < told.index("gone: the container runs out")
    assert "L0 silicon: 1 wrong" in told
    assert told.rstrip().endswith("nothing is wrong")
    looks = iter([diagnose(SICK, RULES).findings] * 2)
    answers = iter(["", "q"])
    assert guide("http://x", lambda: next(looks), 1.0, lambda _: next(answers)) == 1
    assert "still there" in capsys.readouterr().out
