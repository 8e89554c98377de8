"""Where one of several models stands, written by the pool alone and a value for everybody else; and what is counted of it."""

import math
from dataclasses import dataclass
from enum import StrEnum

from penstock.metrics.exposition import DURATION_BUCKETS, Buckets, Counter, Gauge, GaugeTable, Metric


class Residency(StrEnum):
    COLD = "cold"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Resident:
    """One model of the pool: what was configured of it, and what became of it."""

    name: str
    estimated_bytes: int
    """What it is expected to take; replaced by what it was found to take."""
    is_pinned: bool = False
    """Loaded at once and never unloaded."""
    default_keep_alive_s: float = math.inf
    state: Residency = Residency.COLD
    reason: str = ""
    """Of one that failed: why."""
    num_failures: int = 0
    """In a row."""
    retry_s: float = 0.0
    """Of one that failed: when it is tried again."""
    is_checked: bool = False
    """Its files can be read: room is made for no other."""
    is_checking: bool = False
    is_verified: bool = False
    """It was found to be what it was, since the server began."""
    fault: str = ""
    """Why it must not be served although it could be loaded: it is not what it was. Verified before it serves again."""
    num_uses: int = 0
    """Requests that have it now: it is not unloaded while there is one."""
    num_waiting: int = 0
    num_patient: int = 0
    """Of those, how many are batch requests."""
    wanted_s: float | None = None
    """Since when a request waits for it."""
    wanted_by: str = ""
    """The key of the request that has waited longest."""
    used_by: str = ""
    """The key that had it last."""
    evicted_for: str | None = None
    """The key for whose request it had to leave: its next load is charged there."""
    used_s: float = 0.0
    """When it was last let go, or became ready."""
    keep_alive_s: float = math.inf
    """How long it stays from then on: as the last request said, or as configured."""
    is_yielding: bool = False
    """It takes no new requests: once those it has are answered, another takes its room."""
    measured_bytes: int | None = None
    phase: str = ""
    """Of one that is loading: what it does now."""
    load_start_s: float = 0.0
    load_s: float | None = None
    """How long it took to load."""

    @property
    def num_bytes(self) -> int:
        return self.estimated_bytes if self.measured_bytes is None else self.measured_bytes

    @property
    def is_in_memory(self) -> bool:
        return self.state in (Residency.LOADING, Residency.READY, Residency.UNLOADING)

    @property
    def is_open(self) -> bool:
        """A request can have it at once."""
        return self.state is Residency.READY and not self.is_yielding and not self.fault

    @property
    def is_untried(self) -> bool:
        """It has neither been loaded nor found to be wrong."""
        return self.load_s is None and not self.num_failures

    @property
    def expires_s(self) -> float:
        """When it is unloaded if nobody uses it; infinite for one that stays."""
        return math.inf if self.is_pinned else self.used_s + self.keep_alive_s

    def is_over(self, now: float) -> bool:
        """It has to leave, whoever else needs room: nobody has asked for it for long enough, or it must not be served."""
        return self.state is Residency.READY and not self.num_uses and (bool(self.fault) or now >= self.expires_s)

    def is_wanted(self, now: float) -> bool:
        """A load is due: a client waits or the model is pinned, and it is time to try."""
        is_out = self.state is Residency.COLD or (self.state is Residency.FAILED and now >= self.retry_s)
        return is_out and (self.wanted_s is not None or self.is_pinned)

    def wants_check(self, now: float) -> bool:
        return not self.is_checked and not self.is_checking and self.is_wanted(now)

    def wants_load(self, now: float) -> bool:
        return self.is_checked and self.is_wanted(now)


class PoolMeters:
    """Of one model."""

    def __init__(self, resident: Resident) -> None:
        self.loads = Counter("penstock_model_loads", "Times the model was loaded")
        self.failures = Counter("penstock_model_load_failures", "Loads that failed")
        self.unloads = Counter("penstock_model_evictions", "Times the model was unloaded, by why")
        self.load_s = Buckets("penstock_model_load_seconds", "Seconds a load takes", DURATION_BUCKETS)
        self._resident = resident

    @property
    def metrics(self) -> list[Metric]:
        resident = self._resident
        rows = [((("state", one.value),), float(resident.state is one)) for one in Residency]
        states = GaugeTable("penstock_model_state", "1 for the state that a model is in", rows)
        gauges = [
            Gauge(
                "penstock_model_bytes", "Memory that a model takes", lambda: resident.num_bytes * resident.is_in_memory
            ),
            Gauge("penstock_model_requests", "Requests that have the model", lambda: resident.num_uses),
            Gauge("penstock_model_requests_waiting", "Requests that wait for a load", lambda: resident.num_waiting),
        ]
        return [states, *gauges, self.loads, self.failures, self.unloads, self.load_s]
