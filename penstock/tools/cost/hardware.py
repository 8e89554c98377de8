"""What a machine can do: real devices (`devices.json`), their limits, and what of them programs reach.

Peaks are the vendor's dense figures; `achievable` is what a good kernel gets of them, measured where we have measured. Nothing
here knows about models or batches.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from typing import Any, Literal

from penstock.errors import ConfigError

NumberFormat = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
LinkKind = Literal["nvlink", "pcie", "infinity fabric", "socket", "network"]

COMPUTE_FRACTION = 0.74
"""Share of the dense peak that large bf16 matrix products reached on an H200; assumed where nothing was measured."""
BANDWIDTH_FRACTION = 0.87
"""Share of the peak bandwidth that plain reads reached on an H200; assumed where nothing was measured."""
COMPUTE_RANGE, BANDWIDTH_RANGE = (0.65, 0.82), (0.80, 0.92)
"""Between which those shares lay on the devices and number formats that were measured: the range of the correction."""

GIB = 1024**3

LINK_FRACTION = 0.8
"""Share of a link's one-way peak that large messages reach."""


@dataclass(frozen=True, slots=True)
class Link:
    """How a device reaches others."""

    kind: LinkKind
    bandwidth_bytes_per_s: float
    """One way, as large messages reach it."""
    latency_s: float
    """Of a small message, from kernel to kernel."""

    def __str__(self) -> str:
        return f"{1e6 * self.latency_s:,.1f} us a message, {self.bandwidth_bytes_per_s / 1e9:,.1f} GB/s"


def _network(gigabits: float) -> Link:
    return Link("network", gigabits * 1e9 / 8 * LINK_FRACTION, 15e-6)


_FAST_NETWORK = _network(400)
_LATENCY_S = {"nvlink": 3e-6, "infinity fabric": 4e-6, "pcie": 8e-6, "socket": 1e-6}


@dataclass(frozen=True, slots=True)
class Flops:
    """Dense operations per second by number format; 0 where the hardware has none."""

    fp32: float = 0.0
    bf16: float = 0.0
    fp16: float = 0.0
    fp8: float = 0.0
    int8: float = 0.0

    def scaled(self, fraction: float) -> "Flops":
        return Flops(*(getattr(self, field.name) * fraction for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The two roofs of the roofline."""

    bandwidth_bytes_per_s: float
    flops: Flops

    def flops_in(self, number_format: NumberFormat) -> float:
        value: float = getattr(self.flops, number_format)
        if not value > 0.0:
            known = [field.name for field in fields(Flops) if getattr(self.flops, field.name) > 0.0]
            raise ConfigError(f"this hardware does not compute in {number_format}; choose {' or '.join(known)}")
        return value

    def scaled(self, compute: float, bandwidth: float) -> "Ceilings":
        return Ceilings(self.bandwidth_bytes_per_s * bandwidth, self.flops.scaled(compute))


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, or one socket with its memory."""

    name: str
    kind: Literal["gpu", "cpu"]
    memory_bytes: int
    """What the driver reports as present, which is less than the name on the box."""
    peak: Ceilings
    interconnect_bytes_per_s: float
    """To its peers in the same machine, both directions together."""
    source: str
    """Where the figures come from."""
    measured: Ceilings | None = None
    interconnect: Literal["nvlink", "pcie", "infinity fabric", "socket"] = "nvlink"
    devices_per_machine: int = 8
    """Devices that reach each other by the interconnect; further ones by the network."""
    network: Link = _FAST_NETWORK
    """Of one device to another machine."""
    price_per_hour: float | None = None
    """List price in US dollars of one device, its share of the machine included; None where there is no common one."""
    price_source: str = ""
    """Where the price comes from, and when. Give your own with --price."""
    measured_link: Link | None = None
    """The interconnect as all-reduces found it, if they were timed."""
    num_parts: int = 1
    """Of how many equal parts of a machine's processor this is one; ranks that share it have one each."""

    def link(self, num_devices: int) -> Link:
        """What a group of that many devices talks over: the interconnect inside a machine, else the network."""
        if num_devices > self.devices_per_machine:
            return self.network
        if self.measured_link is not None:
            return self.measured_link
        one_way = self.interconnect_bytes_per_s / 2
        return Link(self.interconnect, one_way * LINK_FRACTION, _LATENCY_S[self.interconnect])

    @property
    def trust(self) -> str:
        """Where the achievable figures come from: measured on such a device, or corrected from the vendor's, and how far."""
        if self.measured is not None:
            return "measured"
        low, high = BANDWIDTH_RANGE
        least, most = COMPUTE_RANGE
        reads = f"{BANDWIDTH_FRACTION:g} of its bandwidth ({low:g} to {high:g})"
        return f"corrected to {reads} and {COMPUTE_FRACTION:g} of its operations ({least:g} to {most:g}),"

    @property
    def achievable(self) -> Ceilings:
        return self.measured or self.peak.scaled(COMPUTE_FRACTION, BANDWIDTH_FRACTION)

    def part(self, count: int) -> "Hardware":
        """One of that many equal parts, which reach each other inside the machine."""
        name, memory_bytes = f"{self.name}/{count}", self.memory_bytes // count
        part = self.cut(name, memory_bytes, 1.0 / count, 1.0 / count)
        return replace(part, devices_per_machine=count, num_parts=count)

    def cut(self, name: str, memory_bytes: int, compute: float, bandwidth: float) -> "Hardware":
        """With these shares of its peaks, for the larger of both of its price."""
        price = self.price_per_hour
        return replace(
            self,
            name=name,
            memory_bytes=memory_bytes,
            peak=self.peak.scaled(compute, bandwidth),
            measured=self.measured and self.measured.scaled(compute, bandwidth),
            price_per_hour=None if price is None else price * max(compute, bandwidth),
        )


def find(name: str) -> Hardware:
    """The device of that name, whatever its case."""
    wanted = name.strip().lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted in HARDWARE:
        return HARDWARE[wanted]
    near = difflib.get_close_matches(wanted, HARDWARE, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown hardware {name!r}: {hint}choose one of {', '.join(HARDWARE)}")


def _ceilings(row: Mapping[str, Any]) -> Ceilings:
    return Ceilings(1e9 * row["bandwidth_gb"], Flops(**row["tera"]).scaled(1e12))


def _device(name: str, row: Mapping[str, Any], prices: Mapping[str, str]) -> Hardware:
    """A row of the table: GiB, GB and TFLOP a second, of links both directions together."""
    interconnect, link_gb = row["link"]
    price, price_source = row["price"]
    return Hardware(
        name,
        row.get("kind", "gpu"),
        round(row["memory_gib"] * GIB),
        _ceilings(row),
        1e9 * link_gb,
        row["source"],
        measured=_ceilings(row["measured"]) if "measured" in row else None,
        interconnect=interconnect,
        devices_per_machine=row.get("devices_per_machine", 8),
        network=_network(row.get("network_gigabits", 400)),
        price_per_hour=price,
        price_source=prices[price_source],
    )


def mig_slice(whole: Hardware, name: str, sevenths: int, eighths: int) -> Hardware:
    """A part of a GPU that is one of its own: so many sevenths of the compute, eighths of the memory and its bandwidth.

    As the Multi-Instance GPU user guide lists profiles; slices reach each other by no link.
    """
    compute, memory = sevenths / 7, eighths / 8
    source = f"{whole.source}; MIG profile: {sevenths}/7 of the compute, {eighths}/8 of the memory"
    cut = whole.cut(name, round(whole.memory_bytes * memory), compute, memory)
    return replace(cut, devices_per_machine=1, source=source)


_TABLE = json.loads(files(__package__).joinpath("devices.json").read_text(encoding="utf-8"))
_WHOLE = {name: _device(name, row, _TABLE["prices"]) for name, row in _TABLE["devices"].items()}
_SLICES = tuple(
    mig_slice(_WHOLE[whole], f"{short}-mig-{sevenths}g.{unit * eighths}gb", sevenths, eighths)
    for whole, short, unit in (("a100-80", "a100", 10), ("h100-sxm", "h100", 10))
    for sevenths, eighths in ((1, 1), (2, 2), (3, 4), (4, 4))
)
HARDWARE: dict[str, Hardware] = _WHOLE | {one.name: one for one in _SLICES}
ALIASES = {"a100": "a100-80", "h100": "h100-sxm"}
"""What people say when they do not say which."""
