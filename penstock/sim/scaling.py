"""How many replicas there should be: a rule that checks periodically, starts more, and stops some after a period of less
load."""

from dataclasses import dataclass
from typing import Literal

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

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas <= 10_000 or not self.max_replicas:
            raise ConfigError(
                f"scaling from {self.min_replicas} to {self.max_replicas} replicas; choose 0 or more, and as many or more, "
                "10000 at most"
            )
        if not self.target > 0.0 or (self.by == "utilisation" and not self.target <= 1.0):
            bound = "above 0, at most 1" if self.by == "utilisation" else "above 0"
            raise ConfigError(f"the target of scaling by {self.by} is {self.target}; choose a number {bound}")
        for name, least in (("cold_start_s", 0.0), ("down_delay_s", 0.0), ("interval_s", 0.01)):
            if not least <= getattr(self, name) <= 1e6:
                raise ConfigError(f"scaling's {name} is {getattr(self, name)}; choose {least:g} seconds or more")


class Scaler:
    """Remembers since when fewer replicas would have sufficed."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._less_since: float | None = None

    def wanted(self, num_now: int, num_pending: int, busy_fraction: float, now: float) -> int:
        """Replicas there should be, given those ordered, their pending requests and how busy they were since the last check."""
        scaling = self._scaling
        if scaling.by == "pending":
            needed = -int(-num_pending // scaling.target)
        else:
            needed = -int(-num_now * busy_fraction // scaling.target)
            if num_pending:
                needed = max(needed, 1)
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
