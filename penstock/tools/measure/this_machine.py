"""The machine we run on: what tells it from others, what it reaches, and where what was measured on it is kept.

`this-machine/2` is one of two equal parts of its processor, as each of two ranks has one.

Measured once and kept under the user's cache directory by fingerprint: a moved home directory or another processor is
measured anew.
"""

import hashlib
import json
import logging
import math
import os
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penstock.console.files import cache_folder, write_file
from penstock.errors import ConfigError
from penstock.tools.cost import hardware as devices
from penstock.tools.cost.hardware import Ceilings, Flops, Hardware
from penstock.tools.measure.environment import text_of
from penstock.tools.measure.ranks import kept_all_reduce

LOGGER = logging.getLogger(__name__)
NAME = "this-machine"
VERSION = 1
TYPICAL_BYTES = 256 << 20


def machine_facts() -> dict[str, Any]:
    """What decides how fast this machine is, as far as the system reports it."""
    return {
        "processor": _processor(),
        "num_processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def fingerprint(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def find_hardware(name: str, model_bytes: int = TYPICAL_BYTES) -> Hardware:
    """A device of the table, or `this-machine`, measured if it has not been, or a part of it."""
    whole, slash, count = name.strip().lower().partition("/")
    if whole != NAME:
        return devices.find(name)
    facts = machine_facts()
    known = _read(_path(facts))
    if known is None:
        LOGGER.warning("penstock: measuring this machine, once; a few seconds")
        known = _measure(facts, model_bytes)
    known = _linked(known, facts)
    return known if not slash else _part(known, count, facts)


def parts_of(hardware: Hardware, most: int) -> tuple[Hardware, ...]:
    """The machine, and its parts that ranks can have, if what lies between them was measured."""
    if hardware.name != NAME or hardware.kind != "cpu" or hardware.measured_link is None:
        return (hardware,)
    most = min(most, machine_facts()["num_processors"])
    return hardware, *(hardware.part(count) for count in (2, 4, 8) if count <= most)


def all_reduce_path(facts: dict[str, Any]) -> Path:
    return _path(facts).with_suffix(".all-reduce.json")


def _linked(hardware: Hardware, facts: dict[str, Any]) -> Hardware:
    """With the link between ranks, if `penstock profile` has measured it."""
    found = kept_all_reduce(all_reduce_path(facts))
    if found is None:
        return hardware
    num_devices = len(facts["gpus"]) if hardware.kind == "gpu" else 1
    return replace(hardware, measured_link=found.link(hardware.interconnect), devices_per_machine=num_devices)


def _part(hardware: Hardware, count: str, facts: dict[str, Any]) -> Hardware:
    most = facts["num_processors"] if hardware.kind == "cpu" else 1
    if not count.isdecimal() or not 2 <= int(count) <= most:
        raise ConfigError(f"{NAME}/{count} is no part of this machine; choose {NAME}, or {NAME}/2 to {NAME}/{most}")
    return hardware.part(int(count))


def known_hardware() -> Hardware | None:
    """This machine, if it has been measured."""
    facts = machine_facts()
    known = _read(_path(facts))
    return known and _linked(known, facts)


def _measure(facts: dict[str, Any], model_bytes: int) -> Hardware:
    """Measure this machine and keep what was found."""
    from penstock.runtime.execution.ceilings import measure_ceilings  # torch: slow to import, and only needed here
    from penstock.runtime.execution.device import open_device

    device = open_device("auto")
    reached = measure_ceilings(device.torch_device, model_bytes, facts["num_processors"])
    ceilings = Ceilings(reached.large_bytes_per_s, Flops(**reached.flops))
    source = (
        f"measured here through torch, {facts['num_processors']} threads: reads of 256 MiB, products of 512 rows; "
        f"a buffer of the model's size was read at {reached.model_bytes_per_s / 1e9:.1f} GB/s"
    )
    kind = "gpu" if device.torch_device.type == "cuda" else "cpu"
    found = _hardware(kind, device.free_bytes, ceilings, source)
    path = _path(facts)
    write_file(path, json.dumps({"version": VERSION, "facts": facts, "hardware": asdict(found)}, indent=1) + "\n")
    return found


def _path(facts: dict[str, Any]) -> Path:
    return cache_folder() / "machines" / f"{fingerprint(facts)}.json"


def _read(path: Path) -> Hardware | None:
    """What was kept; None if nothing was, or nothing that can be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            return None
        kept = data["hardware"]
        rate = float(kept["peak"]["bandwidth_bytes_per_s"])
        flops = Flops(**{name: float(value) for name, value in kept["peak"]["flops"].items()})
        numbers = (rate, *asdict(flops).values())
        if not all(0.0 <= number < math.inf for number in numbers) or rate <= 0.0:
            return None
        ceilings = Ceilings(rate, flops)
        return _hardware(str(kept["kind"]), int(kept["memory_bytes"]), ceilings, str(kept["source"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _hardware(kind: str, memory_bytes: int, ceilings: Ceilings, source: str) -> Hardware:
    """One device by itself: what lies between several is measured apart."""
    return Hardware(
        NAME,
        "gpu" if kind == "gpu" else "cpu",
        memory_bytes,
        ceilings,
        0.0,
        source,
        measured=ceilings,
        interconnect="pcie" if kind == "gpu" else "socket",
        devices_per_machine=1,
    )


def _processor() -> str:
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    by_key = {key.strip(): value.strip() for key, value in fields.items()}
    words = (by_key.get(key, "") for key in ("model name", "cpu family", "model", "stepping"))
    return " ".join(words).strip() if lines else platform.processor()


def _gpus() -> list[str]:
    """By the driver's own list: torch need not be imported to know them."""
    texts = map(text_of, sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")))
    lines = (line for text in texts for line in text.splitlines())
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
