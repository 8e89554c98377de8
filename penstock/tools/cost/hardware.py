"""What a machine can do: a table of real devices, their limits, and what of them programs reach.

Peaks are the vendor's dense figures; `achievable` is what a good kernel gets of them, measured where we have measured. Nothing
here knows about models or batches.
"""

import difflib
from dataclasses import dataclass, fields, replace
from typing import Literal

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

    def ridge(self, number_format: NumberFormat) -> float:
        """Operations per byte above which work is bound by compute, below by memory."""
        return self.flops_in(number_format) / self.bandwidth_bytes_per_s

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
    """Where the price comes from, and when."""
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
        share = 1.0 / count
        return replace(
            self,
            name=f"{self.name}/{count}",
            memory_bytes=self.memory_bytes // count,
            peak=self.peak.scaled(share, share),
            measured=self.measured and self.measured.scaled(share, share),
            devices_per_machine=count,
            price_per_hour=None if self.price_per_hour is None else self.price_per_hour * share,
            num_parts=count,
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


def _gpu(
    name: str,
    memory_gib: float,
    bandwidth_gb: float,
    tera: Flops,
    interconnect_gb: float,
    source: str,
    *,
    network_gigabits: float = 400,
    price: float | None = None,
) -> Hardware:
    """Less than 120 GB/s is a PCI Express slot, and more than that NVLink."""
    peak = Ceilings(bandwidth_gb * 1e9, tera.scaled(1e12))
    return Hardware(
        name,
        "gpu",
        round(memory_gib * GIB),
        peak,
        interconnect_gb * 1e9,
        source,
        interconnect="pcie" if interconnect_gb <= _FASTEST_SLOT_GB else "nvlink",
        network=_network(network_gigabits),
        price_per_hour=price,
    )


_FASTEST_SLOT_GB = 128
"""PCI Express 5.0, sixteen lanes, both directions."""


def _hopper(name: str, memory_gib: float, bandwidth_gb: float, source: str, price: float | None = None) -> Hardware:
    tera = Flops(fp32=67, bf16=989, fp16=989, fp8=1979, int8=1979)
    return _gpu(name, memory_gib, bandwidth_gb, tera, 900, source, price=price)


_AMPERE = Flops(fp32=19.5, bf16=312, fp16=312, int8=624)

_H200 = _hopper("h200", 139.8, 4800, "NVIDIA H200 datasheet; bf16, fp8 and reads measured, the rest by the same shares")
_H200_MEASURED = Ceilings(
    4.29e12, Flops(fp32=67e12 * COMPUTE_FRACTION, bf16=750e12, fp16=750e12, fp8=1290e12, int8=1290e12)
)
"""Means of the ceilings in benchmarks/results/gpu-8b.json, gpu-0.6b.json and gpu-30b.json."""

_CLOUD_2CORE = Ceilings(26e9, Flops(fp32=0.25e12, bf16=1.4e12, int8=1.5e12))

# Prices are AWS list prices on demand in us-east-1 as of 2024, the whole instance divided by its devices.
_DEVICES = (
    _gpu("a100-40", 39.6, 1555, _AMPERE, 600, "NVIDIA A100 datasheet, SXM 40 GB", price=4.10),
    _gpu("a100-80", 79.3, 2039, _AMPERE, 600, "NVIDIA A100 datasheet, SXM 80 GB", price=5.12),
    _hopper("h100-sxm", 79.2, 3350, "NVIDIA H100 datasheet, SXM", price=12.29),
    _gpu(
        "h100-pcie",
        79.2,
        2000,
        Flops(51, 756, 756, 1513, 1513),
        128,
        "NVIDIA H100 PCIe product brief; no NVLink bridge",
    ),
    replace(
        _gpu(
            "h100-nvl", 93.1, 3900, Flops(60, 835, 835, 1671, 1671), 600, "NVIDIA H100 datasheet, NVL, one of the pair"
        ),
        devices_per_machine=2,
    ),
    replace(_H200, measured=_H200_MEASURED),
    _gpu("b200", 178.4, 8000, Flops(75, 2250, 2250, 4500, 4500), 1800, "NVIDIA HGX B200 datasheet, one of eight"),
    _gpu("l4", 22.0, 300, Flops(30.3, 121, 121, 242, 242), 64, "NVIDIA L4 datasheet", network_gigabits=50, price=0.80),
    _gpu(
        "l40s", 44.4, 864, Flops(91.6, 362, 362, 733, 733), 64, "NVIDIA L40S datasheet", network_gigabits=50, price=1.86
    ),
    _gpu(
        "a10g",
        22.1,
        600,
        Flops(fp32=35, bf16=70, fp16=70, int8=140),
        64,
        "NVIDIA A10G datasheet",
        network_gigabits=25,
        price=1.01,
    ),
    replace(
        _gpu(
            "rtx-4090",
            23.6,
            1008,
            Flops(82.6, 165, 165, 330, 661),
            64,
            "NVIDIA Ada whitepaper, fp32 accumulation",
            network_gigabits=10,
        ),
        devices_per_machine=4,
    ),
    replace(
        _gpu(
            "rtx-3090",
            23.7,
            936,
            Flops(fp32=35.6, bf16=71, fp16=71, int8=284),
            112,
            "NVIDIA GA102 whitepaper; a pair with a bridge",
            network_gigabits=10,
        ),
        interconnect="nvlink",
        devices_per_machine=2,
    ),
    _gpu(
        "t4", 14.7, 320, Flops(fp32=8.1, fp16=65, int8=130), 32, "NVIDIA T4 datasheet", network_gigabits=25, price=0.53
    ),
    replace(
        _gpu("mi300x", 192.0, 5300, Flops(163, 1307, 1307, 2615, 2615), 896, "AMD Instinct MI300X datasheet"),
        interconnect="infinity fabric",
    ),
    replace(
        _gpu(
            "gb200",
            173.2,
            8000,
            Flops(80, 2500, 2500, 5000, 5000),
            1800,
            "NVIDIA GB200 NVL72 datasheet, one of 72 GPUs of a rack",
        ),
        devices_per_machine=72,
    ),
    _gpu(
        "gh200",
        93.6,
        4000,
        Flops(67, 989, 989, 1979, 1979),
        900,
        "NVIDIA GH200 datasheet, 96 GB HBM3; the Grace side's 480 GB come over a link of 900 GB/s and are not counted",
    ),
    _gpu(
        "a10",
        22.5,
        600,
        Flops(fp32=31.2, bf16=125, fp16=125, int8=250),
        64,
        "NVIDIA A10 datasheet",
        network_gigabits=25,
    ),
    _gpu(
        "rtx-6000-ada",
        47.5,
        960,
        Flops(91.1, 364, 364, 728, 728),
        64,
        "NVIDIA RTX 6000 Ada datasheet",
        network_gigabits=25,
    ),
    replace(
        _gpu(
            "rtx-5090",
            31.8,
            1792,
            Flops(104.8, 209.5, 209.5, 419, 838),
            128,
            "NVIDIA RTX Blackwell architecture whitepaper, fp32 accumulation",
            network_gigabits=10,
        ),
        devices_per_machine=4,
    ),
    replace(
        _gpu(
            "dgx-spark",
            119.0,
            273,
            Flops(31, 125, 125, 250, 250),
            50,
            "NVIDIA DGX Spark datasheet: GB10, 128 GB of unified memory; dense figures from 1 PFLOP of sparse FP4",
            network_gigabits=200,
        ),
        devices_per_machine=1,
    ),
    *(
        replace(
            _gpu(
                name,
                0.75 * memory_gb,
                bandwidth,
                Flops(fp32=tera, bf16=tera, fp16=tera),
                32,
                f"Apple {name}: bandwidth and {memory_gb} GB of unified memory as in its technical specifications, three "
                "quarters of it for the GPU by default; operations from cores times clock",
                network_gigabits=10,
            ),
            devices_per_machine=1,
        )
        for name, memory_gb, bandwidth, tera in (
            ("m2-ultra", 192, 800, 27.2),
            ("m3-ultra", 512, 819, 28.2),
            ("m4-max", 128, 546, 18.4),
        )
    ),
    Hardware(
        "grace",
        "cpu",
        480 * GIB,
        Ceilings(500e9, Flops(fp32=7.1e12, bf16=28.4e12, int8=56.8e12)),
        900e9,
        "NVIDIA Grace CPU datasheet, one of two: 72 cores at 3.1 GHz, LPDDR5X; bf16 and int8 by their matrix instructions",
        interconnect="socket",
        devices_per_machine=2,
        network=_network(400),
    ),
    Hardware(
        "xeon-8480",
        "cpu",
        256 * GIB,
        Ceilings(307.2e9, Flops(fp32=7.2e12, bf16=115e12, int8=229e12)),
        96e9,
        "Intel Xeon 8480+: 56 cores at 2.0 GHz, AMX 1,024 bf16 operations a cycle, 8 channels DDR5-4800 of 32 GB",
        interconnect="socket",
        devices_per_machine=2,
        network=_network(100),
    ),
    Hardware(
        "epyc-9654",
        "cpu",
        384 * GIB,
        Ceilings(460.8e9, Flops(fp32=7.4e12, bf16=14.7e12, int8=29.5e12)),
        128e9,
        "AMD EPYC 9654: 96 cores at 2.4 GHz, two 256-bit pipes, 12 channels DDR5-4800 of 32 GB",
        interconnect="socket",
        devices_per_machine=2,
        network=_network(100),
    ),
    Hardware(
        "cloud-2core",
        "cpu",
        22 * GIB,
        _CLOUD_2CORE,
        10e9,
        "measured through torch on a virtual machine: two cores with AMX, reads over 1 GB, products of 512 rows",
        measured=_CLOUD_2CORE,
        interconnect="socket",
        devices_per_machine=1,
        network=_network(10),
    ),
)


def mig_slice(whole: Hardware, name: str, sevenths: int, eighths: int) -> Hardware:
    """A part of a GPU that is one of its own: so many sevenths of the compute, eighths of the memory and its bandwidth.

    As the Multi-Instance GPU user guide lists profiles; slices reach each other by no link.
    """
    compute, memory = sevenths / 7, eighths / 8
    measured = whole.measured and whole.measured.scaled(compute, memory)
    price = None if whole.price_per_hour is None else whole.price_per_hour * max(compute, memory)
    return replace(
        whole,
        name=name,
        memory_bytes=round(whole.memory_bytes * memory),
        peak=whole.peak.scaled(compute, memory),
        measured=measured,
        devices_per_machine=1,
        price_per_hour=price,
        source=f"{whole.source}; MIG profile: {sevenths}/7 of the compute, {eighths}/8 of the memory",
    )


_WHOLE = {device.name: device for device in _DEVICES}
_SLICES = tuple(
    mig_slice(_WHOLE[whole], f"{short}-mig-{sevenths}g.{size}gb", sevenths, eighths)
    for whole, short, unit in (("a100-80", "a100", 10), ("h100-sxm", "h100", 10))
    for sevenths, eighths in ((1, 1), (2, 2), (3, 4), (4, 4))
    for size in (unit * eighths,)
)

LIST_PRICES = "AWS on demand, us-east-1, the instance divided by its devices, 2024"
_ORACLE = "Oracle list, an eighth or a whole of its shape, oraclelicensingexperts.com, 2026-04-14"
_RUNPOD = "RunPod on demand, deploybase.ai, 2026-03-10"
_LAMBDA = "Lambda on demand, computespec.pages.dev, read 2026-11"
_METAL = "AWS on demand of a metal instance, us-east-1, 2024; not looked up again"
_BOUGHT = "what it costs to buy over three years, and its power, 2025; not looked up again"
_USUAL = "usual rent of clouds that have it, 2024 to 2025; not looked up again"
_RENTS = {
    "h100-pcie": (2.49, _LAMBDA), "h100-nvl": (2.79, _USUAL), "h200": (12.25, _ORACLE), "b200": (16.00, _ORACLE),
    "gb200": (10.50, _USUAL), "gh200": (3.19, _USUAL), "mi300x": (6.00, _USUAL), "a10": (1.27, _ORACLE),
    "rtx-6000-ada": (1.03, _USUAL), "rtx-5090": (1.22, _RUNPOD), "rtx-4090": (0.60, _RUNPOD), "rtx-3090": (0.39, _RUNPOD),
    "xeon-8480": (4.84, _METAL), "epyc-9654": (5.56, _METAL), "cloud-2core": (0.10, _USUAL), "grace": (1.60, _USUAL),
    "dgx-spark": (0.18, _BOUGHT), "m2-ultra": (0.24, _BOUGHT), "m3-ultra": (0.40, _BOUGHT), "m4-max": (0.20, _BOUGHT),
}  # fmt: skip
"""Dollars an hour where AWS had no list price in 2024, and where each comes from. Give your own with --price."""


def _priced(hardware: Hardware) -> Hardware:
    if hardware.price_per_hour is not None:
        return replace(hardware, price_source=LIST_PRICES)
    price, source = _RENTS.get(hardware.name, (None, ""))
    return replace(hardware, price_per_hour=price, price_source=source)


HARDWARE: dict[str, Hardware] = {hardware.name: _priced(hardware) for hardware in (*_DEVICES, *_SLICES)}
ALIASES = {"a100": "a100-80", "h100": "h100-sxm"}
"""What people say when they do not say which."""
