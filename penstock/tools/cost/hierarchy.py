"""Where bytes can lie, from the chip outward, and how fast it is read there. Vendors' figures; nothing is measured."""

from typing import NamedTuple

from penstock.tools.cost.hardware import Hardware


class MemoryLevel(NamedTuple):
    name: str
    bandwidth_bytes_per_s: float


_ON_CHIP: dict[str, tuple[MemoryLevel, ...]] = {
    # Shared memory and L1 of all SMs at 128 bytes a clock each (whitepapers of the architectures); L2 as measured by
    # microbenchmarks that were published.
    "a100": (MemoryLevel("shared memory", 19.5e12), MemoryLevel("L2", 5.1e12)),
    "h100": (MemoryLevel("shared memory", 33e12), MemoryLevel("L2", 12e12)),
}
_FAMILY = {"h200": "h100", "gh200": "h100"}
_HOST_BYTES_PER_S = {"a100": 32e9}
"""Sixteen lanes of PCI Express one way: 4.0, and 5.0 for all others."""
_DRIVE = MemoryLevel("NVMe", 7e9)
"""On four lanes of PCI Express 4.0."""


def levels_of(hardware: Hardware) -> tuple[MemoryLevel, ...]:
    """From the innermost outward. Devices whose chip is not tabled begin with their memory."""
    family = next((one for one in _ON_CHIP if hardware.name.startswith(one)), _FAMILY.get(hardware.name, ""))
    own = MemoryLevel("memory", hardware.peak.bandwidth_bytes_per_s)
    if hardware.kind == "cpu":
        return own, _DRIVE
    host = MemoryLevel("host", _HOST_BYTES_PER_S.get(family, 64e9))
    return (*_ON_CHIP.get(family, ()), own, host, _DRIVE)
