"""How many replicas there should be: a rule that checks periodically, starts more, and stops some after a period of less
load.

    pending or utilisation   what each replica is to hold
    KV                       blocks in use, where that is limited
    predicted attainment     of the requests that wait, the share whose first token comes in time, as fast as replicas serve

The largest of what these ask for counts.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scaling:
    min_replicas: int
    max_replicas: int
    target: float = 16.0
    """Pending requests a replica, or share of its time that it computes, to hold"""
    by: Literal["pending", "utilisation"] = "pending"
    cold_start_s: float = 60.0
    """From the decision to the first request served"""
    down_delay_s: float = 300.0
    """How long less must suffice before a replica is stopped"""
    interval_s: float = 5.0
    """Between two checks"""
    kv_target: float | None = None
    """Share of a replica's KV blocks in use to hold; None asks for no replica because of them"""
    ttft_s: float | None = None
    """First tokens of waiting requests are to come within this; None predicts none"""
    attainment: float = 0.95
    """Of them, the share that must"""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas <= 10_000 or not self.max_replicas:
            raise ConfigError(
                f"scaling from {self.min_replicas} to {self.max_replicas} replicas; choose 0 or more, and as many or more, "
                "10000 at most"
            )
        if not self.target > 0.0 or (self.by == "utilisation" and not self.target <= 1.0):
            bound = "above 0, at most 1" if self.by == "utilisation" else "above 0"
            raise ConfigError(f"the target of scaling by {self.by} is {self.target}; choose a number {bound}")
        for name in ("kv_target", "attainment"):
            if getattr(self, name) is not None and not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"scaling's {name} is {getattr(self, name)}; choose a share above 0, at most 1")
        if self.ttft_s is not None and not 0.0 < self.ttft_s <= 1e6:
            raise ConfigError(f"scaling's ttft_s is {self.ttft_s}; choose seconds above 0")
        for name, least in (("cold_start_s", 0.0), ("down_delay_s", 0.0), ("interval_s", 0.01)):
            if not least <= getattr(self, name) <= 1e6:
                raise ConfigError(f"scaling's {name} is {getattr(self, name)}; choose {least:g} seconds or more")


class Pressure(NamedTuple):
    """What the replicas there are are up against, beside requests pending."""

    kv_fraction: float = 0.0
    """Of their KV blocks, those in use, on average."""
    num_waiting: int = 0
    """Requests without a first token."""
    served_per_s: float = 0.0
    """Requests that one replica serves; 0 where that is not known yet."""


NO_PRESSURE = Pressure()


def predicted_attainment(num_replicas: int, pressure: Pressure, ttft_s: float) -> float:
    """Of the requests that wait, the share that is begun within `ttft_s` if replicas go on as they do.

    The i-th of them is begun when i have been served: i / (replicas * rate) seconds from now.
    """
    if not pressure.num_waiting or not pressure.served_per_s:
        return 1.0
    return min(1.0, math.floor(ttft_s * num_replicas * pressure.served_per_s) / pressure.num_waiting)


class ServedRate:
    """Requests a second that a replica serves, as its best moments show: with little to do it serves little."""

    KEPT = 0.98
    """Of it, from one check to the next, lest what was once possible counts for ever."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._last: tuple[int, float] | None = None

    def note(self, num_served: int, num_replicas: int, now: float) -> float:
        """So many were served so far, lately by so many replicas."""
        if self._last is not None and now > self._last[1] and num_replicas:
            latest = (num_served - self._last[0]) / (now - self._last[1]) / num_replicas
            self.per_s = max(latest, self.KEPT * self.per_s)
        self._last = num_served, now
        return self.per_s


class Scaler:
    """Remembers since when fewer replicas would have sufficed."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._less_since: float | None = None

    def wanted(
        self, num_now: int, num_pending: int, busy_fraction: float, now: float, pressure: Pressure = NO_PRESSURE
    ) -> int:
        """Replicas there should be, given those ordered, their pending requests and how busy they were since the last check."""
        scaling = self._scaling
        if scaling.by == "pending":
            needed = -int(-num_pending // scaling.target)
        else:
            needed = -int(-num_now * busy_fraction // scaling.target)
            if num_pending:
                needed = max(needed, 1)
        needed = max(needed, self._needed_by(pressure, num_now))
        needed = min(max(needed, scaling.min_replicas), scaling.max_replicas)
        if needed >= num_now:
            self._less_since = None
            return needed
        if self._less_since is None:
            self._less_since = now
        if now - self._less_since < scaling.down_delay_s:
            return num_now
        self._less_since = now
        return num_now - 1

    def _needed_by(self, pressure: Pressure, num_now: int) -> int:
        """Replicas that KV in use and waiting requests ask for."""
        scaling, needed = self._scaling, 0
        if scaling.kv_target is not None:
            needed = math.ceil(num_now * pressure.kv_fraction / scaling.kv_target - 1e-9)
        if scaling.ttft_s is not None and pressure.served_per_s:
            least = num_now
            while least < scaling.max_replicas and not self._is_attained(least, pressure):
                least += 1
            while least > 0 and self._is_attained(least - 1, pressure):
                least -= 1
            needed = max(needed, least)
        return needed

    def _is_attained(self, num_replicas: int, pressure: Pressure) -> bool:
        ttft_s = self._scaling.ttft_s
        return ttft_s is None or predicted_attainment(num_replicas, pressure, ttft_s) >= self._scaling.attainment
