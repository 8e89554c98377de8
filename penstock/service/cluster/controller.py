"""Keeps as many replicas as the load asks for: places, watches, replaces and removes them.

    wanted    the simulator's own rule (`scaling`), told what is pending, looked at every `interval_s`
    starting  placed, loading; counted as there, so that one burst orders no second replica
    ready     given to the router
    draining  taken from the router; ended once nothing is pending there
    lost      its actor or its server is gone: taken from the router, its place given back, another is ordered

The clock, Ray and the router are handed in: tests drive it by hand.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.errors import ConfigError
from penstock.service.cluster.replica import CONFIG_STATUS, ServerReport
from penstock.service.cluster.scaling import ArrivalCurve, ArrivalTrend, Pressure, Scaler, Scaling, ServedRate

MAX_FAILED = 3
"""Replicas in a row that end before they are ready before we stop trying."""


class Placement(Protocol):
    """A replica where Ray put it."""

    how_lost: str
    """Why it cannot be reached any more."""

    async def report(self) -> ServerReport | None:
        """None if it cannot be reached any more: its node or its actor is gone."""

    async def remove(self, drain_s: float) -> None:
        """End it and give its place back."""


class ReplicaLoad(Protocol):
    num_pending: int
    num_waiting: int
    """Requests that it has not begun."""
    kv_usage_fraction: float


class RouterSide(Protocol):
    """The router, as far as replicas come and go."""

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has."""

    @property
    def num_served(self) -> int:
        """Requests that were answered, by whatever replica."""

    def load(self, name: str) -> ReplicaLoad: ...

    def add(self, name: str, url: str) -> None: ...

    def drain(self, name: str) -> None:
        """Nothing new goes there."""

    def remove(self, name: str) -> None: ...


class ReplicaPhase(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True)
class PlacedReplica:
    name: str
    placement: Placement
    since_s: float
    phase: ReplicaPhase = ReplicaPhase.STARTING
    report: ServerReport | None = None


@dataclass(slots=True)
class Controller:
    """Sole writer of what replicas there are."""

    scaling: Scaling
    place: Callable[[str], Awaitable[Placement]]
    traffic: RouterSide
    drain_s: float
    clock: Callable[[], float]
    curve: ArrivalCurve | None = None
    """What came at which time of day, where that is recorded."""
    unix_clock: Callable[[], float] = time.time
    served: ServedRate = field(default_factory=ServedRate)
    replicas: dict[str, PlacedReplica] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    """The last hundred."""
    num_noted: int = 0
    """Events so far."""
    _scaler: Scaler = field(init=False)
    _trend: ArrivalTrend = field(default_factory=ArrivalTrend)
    _num_placed: int = 0
    _num_failed: int = 0

    def __post_init__(self) -> None:
        self._scaler = Scaler(self.scaling)

    @property
    def num_there(self) -> int:
        """Replicas that serve or are about to."""
        return sum(replica.phase is not ReplicaPhase.DRAINING for replica in self.replicas.values())

    @property
    def num_pending(self) -> int:
        return self.traffic.num_waiting + sum(load.num_pending for load in self._loads())

    def _loads(self) -> list[ReplicaLoad]:
        """Of replicas that serve."""
        ready = [replica.name for replica in self.replicas.values() if replica.phase is ReplicaPhase.READY]
        return [self.traffic.load(name) for name in ready]

    async def look(self) -> None:
        """One turn: see how replicas are, then order or end some."""
        for replica in list(self.replicas.values()):
            await self._look_at(replica)
        now = self.clock()
        wanted = self._scaler.wanted(self.num_there, self.num_pending, 0.0, now, self._pressure(now))
        while self.num_there < wanted:
            await self._order()
        if self.num_there > wanted:
            self._let_go()

    def _pressure(self, now: float) -> Pressure:
        ready, traffic = self._loads(), self.traffic
        kv_fraction = sum(load.kv_usage_fraction for load in ready) / max(len(ready), 1)
        num_waiting = traffic.num_waiting + sum(load.num_waiting for load in ready)
        num_pending = sum(load.num_pending for load in ready)
        served_per_s = self.served.note(
            traffic.num_served, len(ready), now, is_full=num_waiting > len(ready), num_pending=num_pending
        )
        num_arrived = traffic.num_served + traffic.num_waiting + num_pending
        expected_per_s = 0.0
        if self.curve is not None:
            unix_s = self.unix_clock()
            self.curve.note(num_arrived, unix_s)
            expected_per_s = self.curve.at(unix_s + self._scaler.cold_start_s)
        return Pressure(kv_fraction, num_waiting, served_per_s, *self._trend.note(num_arrived, now), expected_per_s)

    async def stop(self) -> None:
        for replica in list(self.replicas.values()):
            await self._remove(replica, 0.0)

    async def _look_at(self, replica: PlacedReplica) -> None:
        report = await replica.placement.report()
        replica.report = report or replica.report
        if report is None or report.status is not None:
            await self._lose(replica, report)
        elif replica.phase is ReplicaPhase.STARTING and report.is_ready:
            replica.phase = ReplicaPhase.READY
            self._num_failed = 0
            self._scaler.learn_start(max(self.clock() - replica.since_s, 0.0))
            self.traffic.add(replica.name, report.url)
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.parts)
            self._note(f"{replica.name} is ready on {report.node} after {report.start_s:.1f} s ({parts})")
        elif replica.phase is ReplicaPhase.DRAINING:
            is_late = self.clock() - replica.since_s > self.drain_s
            if is_late or not self.traffic.load(replica.name).num_pending:
                await self._remove(replica, self.drain_s)
                self._note(f"{replica.name} has ended")

    async def _lose(self, replica: PlacedReplica, report: ServerReport | None) -> None:
        how = replica.placement.how_lost if report is None else f"its server ended with status {report.status}"
        was_ready = replica.phase is not ReplicaPhase.STARTING
        await self._remove(replica, 0.0)
        self._note(f"{replica.name} is lost: {how}")
        if was_ready or report is None:
            return
        self._num_failed += 1
        if report.status == CONFIG_STATUS or self._num_failed >= MAX_FAILED:
            raise ConfigError(f"replicas do not start: {_last_words(report.words)}")

    async def _order(self) -> None:
        self._num_placed += 1
        name = f"replica-{self._num_placed}"
        placement = await self.place(name)
        self.replicas[name] = PlacedReplica(name, placement, self.clock())
        self._note(f"{name} is ordered")

    def _let_go(self) -> None:
        """The youngest that has the least to do; one that only starts before one that serves."""

        def cost(replica: PlacedReplica) -> tuple[bool, int, float]:
            is_ready = replica.phase is ReplicaPhase.READY
            return is_ready, self.traffic.load(replica.name).num_pending if is_ready else 0, -replica.since_s

        there = [replica for replica in self.replicas.values() if replica.phase is not ReplicaPhase.DRAINING]
        chosen = min(there, key=cost)
        if chosen.phase is ReplicaPhase.READY:
            self.traffic.drain(chosen.name)
        chosen.phase, chosen.since_s = ReplicaPhase.DRAINING, self.clock()
        self._note(f"{chosen.name} is drained")

    async def _remove(self, replica: PlacedReplica, drain_s: float) -> None:
        del self.replicas[replica.name]
        self.traffic.remove(replica.name)
        await replica.placement.remove(drain_s)

    def _note(self, words: str) -> None:
        self.num_noted += 1
        self.events.append(words)
        del self.events[:-100]


def _last_words(words: str) -> str:
    lines = [line for line in words.splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if "error:" in line), lines[-1] if lines else "they say nothing")
    return line.partition("error: ")[2] or line
