"""A plan on paper for several regions and pools: what each needs by itself, and what it needs when another is lost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.tools.cost.hardware import find
from penstock.tools.planner.search import Option


@dataclass(frozen=True, slots=True)
class RegionShare:
    name: str
    share: float
    """Of the whole load."""
    device: str = ""
    """The device of its pool, where it is not the plan's own choice."""


@dataclass(frozen=True, slots=True)
class RegionPlan:
    name: str
    device: str
    rate: float
    num_replicas: int
    """For its own load."""
    num_spare: int
    """Further replicas, so that the others carry the load when any one region is lost."""
    num_devices: int
    hourly: float | None


def read_regions(text: str) -> tuple[RegionShare, ...]:
    """`eu=.5,us=.3,asia=.2`, or `eu@h100=.5,us@l40s=.5` for pools of other devices."""
    found = []
    for part in (one.strip() for one in text.split(",") if one.strip()):
        name, sign, amount = part.partition("=")
        place, _, device = name.partition("@")
        try:
            share = float(amount)
        except ValueError:
            share = -1.0
        if not sign or not place or not 0.0 < share <= 1.0:
            raise ConfigError(f"regions takes NAME=SHARE or NAME@DEVICE=SHARE with commas between, not {part!r}")
        found.append(RegionShare(place, share, device))
    total = sum(one.share for one in found)
    if found and abs(total - 1.0) > 0.01:
        raise ConfigError(
            f"the shares of regions add up to {total:g}; they are shares of the whole load and add up to 1"
        )
    if len({one.name for one in found}) < len(found):
        raise ConfigError("regions names a region twice; give it one share")
    return tuple(found)


def plan_regions(shares: Sequence[RegionShare], rate: float, options: Sequence[Option]) -> tuple[RegionPlan, ...]:
    """Each region with the best option of its device; the first of `options` where it names none."""
    rows = []
    for one in shares:
        option = _option(one, options)
        own = one.share * rate
        lost = max((other.share for other in shares if other is not one), default=0.0)
        taken = own + (one.share / (1.0 - lost) * lost * rate if lost < 1.0 else 0.0)
        count, most = (max(1, math.ceil(each / option.replica_rate)) for each in (own, taken))
        devices = most * option.candidate.num_devices
        hourly = None if option.replica_hourly is None else most * option.replica_hourly
        rows.append(RegionPlan(one.name, option.candidate.hardware.name, own, count, most - count, devices, hourly))
    return tuple(rows)


def _option(region: RegionShare, options: Sequence[Option]) -> Option:
    able = [option for option in options if option.num_replicas]
    if region.device:
        name = find(region.device).name
        able = [option for option in able if option.candidate.hardware.name == name]
    if not able:
        where = f" on {region.device}" if region.device else ""
        raise ConfigError(f"nothing{where} carries the load of region {region.name}; add the device to --hardware")
    return able[0]
