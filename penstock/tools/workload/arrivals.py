"""When requests come: seeded processes that yield arrival times. They know nothing of what arrives."""

import math
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from penstock.errors import ConfigError


class Arrivals(Protocol):
    def times(self, count: int, random: Random) -> list[float]:
        """Seconds from the start, never falling."""


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All requests at time zero: an offline job."""

    def times(self, count: int, random: Random) -> list[float]:
        return [0.0] * count


@dataclass(frozen=True, slots=True)
class Rated:
    """So many a second."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)


@dataclass(frozen=True, slots=True)
class Constant(Rated):
    """Evenly spaced."""

    def times(self, count: int, random: Random) -> list[float]:
        return [number / self.rate for number in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class Poisson(Rated):
    """Independent users: gaps are exponential."""

    def times(self, count: int, random: Random) -> list[float]:
        return list(accumulate(random.expovariate(self.rate) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Gamma(Rated):
    """Bursts: gaps of the same mean whose standard deviation is `variation` times it; 1 is Poisson, more is burstier."""

    variation: float = 2.0

    def __post_init__(self) -> None:
        Rated.__post_init__(self)
        if not 0.01 <= self.variation <= 100.0:
            raise ConfigError(f"the variation of gaps is {self.variation}; choose 0.01 to 100")

    def times(self, count: int, random: Random) -> list[float]:
        shape = 1.0 / self.variation**2
        scale = 1.0 / (self.rate * shape)
        return list(accumulate(random.gammavariate(shape, scale) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class RateRamp:
    """Independent users who grow from one rate to another, evenly in time over the whole run."""

    start_rate: float
    end_rate: float

    def __post_init__(self) -> None:
        _check_rate(self.start_rate)
        _check_rate(self.end_rate)

    def times(self, count: int, random: Random) -> list[float]:
        """Arrivals of one a second, bent so that their rate is the line's: rate(t) = start + growth x t."""
        growth = (self.end_rate**2 - self.start_rate**2) / (2 * count)
        times = accumulate(random.expovariate(1.0) for _ in range(count))
        return [self._bent(time, growth, count) for time in times]

    def _bent(self, time: float, growth: float, count: int) -> float:
        """When `time` arrivals are to be expected. Beyond the ramp's end the last rate goes on."""
        within, beyond = min(time, count), max(time - count, 0.0)
        rate = math.sqrt(max(self.start_rate**2 + 2 * growth * within, 0.0))
        return 2 * within / (self.start_rate + rate) + beyond / self.end_rate


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and 0.0 < rate <= 1e6):
        raise ConfigError(f"the rate is {rate} requests per second; choose a number above 0, at most 1,000,000")
