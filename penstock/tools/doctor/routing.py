"""What can be wrong with a router: its signs, replica by replica, out of two pages of its metrics, and rules over them.

A router has no engine. What happens inside a replica only that replica's own metrics tell.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.metrics.page import Page
from penstock.tools.doctor.finding import Finding, KnownFault, known_faults
from penstock.tools.doctor.page import Change, Where, measured, measures_of

MANY = 20
"""Requests below which shares say nothing."""
FULL_KV = 0.95
OFTEN = 0.05
SLOW_S = 0.01
UNEVEN = 2.0
"""Times the even share from which on one replica has too much."""


REPLICA_GAUGES = ("ready", "breaker_open", "pending", "waiting", "kv_usage")
REPLICA_COUNTERS = ("penstock_router_choices_total", "penstock_router_replica_failures_total")
"""What a router says of each replica, in the order of `ReplicaSigns`."""


@dataclass(frozen=True, slots=True)
class ReplicaSigns:
    """One replica as its router sees it, and what was sent to it in the window."""

    name: str
    is_ready: bool
    is_breaker_open: bool
    num_pending: float
    num_waiting: float
    kv_usage_fraction: float
    num_sent: float
    num_failed: float


@dataclass(frozen=True, slots=True)
class RouterSigns:
    """NaN where the page does not tell, or nothing happened."""

    window_s: float
    policy: str
    replicas: tuple[ReplicaSigns, ...]
    num_sent: float
    num_open: float = measured("gauge", "penstock_router_open")
    num_parked: float = measured("gauge", "penstock_router_parked")
    num_ended: float = measured("count", "penstock_router_requests_total")
    num_refused: float = measured("count", "penstock_router_refused_total")
    num_retries: float = measured("count", "penstock_router_retries_total")
    num_failovers: float = measured("count", "penstock_router_failovers_total")
    tokens_per_s: float = measured(
        "rate", "penstock_router_tokens_total", lambda labels: labels.get("kind") == "output"
    )
    first_byte_p50_s: float = measured("quantile", 0.5, "penstock_router_first_byte_seconds")
    first_byte_p99_s: float = measured("quantile", 0.99, "penstock_router_first_byte_seconds")
    overhead_p99_s: float = measured("quantile", 0.99, "penstock_router_overhead_seconds")

    @property
    def ready(self) -> tuple[ReplicaSigns, ...]:
        return tuple(one for one in self.replicas if one.is_ready)

    @property
    def busiest(self) -> ReplicaSigns | None:
        return max(self.replicas, key=lambda one: one.num_sent, default=None)

    def share(self, replica: ReplicaSigns) -> float:
        return replica.num_sent / self.num_sent if self.num_sent else math.nan


def is_router(page: Page) -> bool:
    return "penstock_router_open" in page


def router_signs(before: Page, after: Page, window_s: float) -> RouterSigns:
    change = Change(before, after, window_s)
    info = after.get("penstock_router_info", ())
    names = [sample.labels.get("replica", "") for sample in after.get("penstock_router_replica_ready", ())]
    replicas = tuple(_replica(name, change, after) for name in names)
    return RouterSigns(
        window_s=window_s,
        policy=info[0].labels.get("policy", "") if info else "",
        replicas=replicas,
        num_sent=sum(one.num_sent for one in replicas),
        **{sign.name: measure(change) for sign, measure in measures_of(RouterSigns)},
    )


def _replica(name: str, change: Change, after: Page) -> ReplicaSigns:
    is_it: Where = lambda labels: labels.get("replica") == name  # noqa: E731
    pages = (after.get(f"penstock_router_replica_{kind}", ()) for kind in REPLICA_GAUGES)
    ready, breaker_open, *load = (
        next((sample.value for sample in page if is_it(sample.labels)), math.nan) for page in pages
    )
    totals = (change.count(total, is_it) for total in REPLICA_COUNTERS)
    counts = (0.0 if math.isnan(total) else total for total in totals)
    return ReplicaSigns(name, ready > 0.0, breaker_open > 0.0, *load, *counts)


def diagnose_router(signs: RouterSigns) -> tuple[Finding, ...]:
    """In the order of the table: what comes first is likelier the cause of what follows."""
    found = ((rule, EVIDENCE[rule.id](signs)) for rule in ROUTER_RULES)
    return tuple(rule.finding(seen) for rule, seen in found if seen)


def _names(replicas: list[ReplicaSigns]) -> str:
    return ", ".join(one.name for one in replicas)


def _down(signs: RouterSigns) -> str:
    lost = [one for one in signs.replicas if not one.is_ready and not one.is_breaker_open]
    return f"not ready: {_names(lost)}; {len(signs.ready)} of {len(signs.replicas)} are" if lost and signs.ready else ""


def _broken(signs: RouterSigns) -> str:
    lost = [one for one in signs.replicas if one.is_breaker_open]
    return f"left alone after failures: {_names(lost)}" if lost else ""


def _failing(signs: RouterSigns) -> str:
    found = [one for one in signs.replicas if one.num_failed]
    return "; ".join(f"{one.name} failed {one.num_failed:.0f} of {one.num_sent:.0f}" for one in found)


def _idle_beside_queue(signs: RouterSigns) -> str:
    full = [one for one in signs.ready if one.num_waiting > 0.0]
    idle = [one for one in signs.ready if not one.num_pending]
    if not full or not idle:
        return ""
    waiting = ", ".join(f"{one.num_waiting:.0f} at {one.name}" for one in full)
    return f"waiting: {waiting}; nothing to do: {_names(idle)}"


def _skew(signs: RouterSigns) -> str:
    most = signs.busiest
    if most is None or len(signs.ready) < 2 or signs.num_sent < MANY:
        return ""
    share, even = signs.share(most), 1.0 / len(signs.ready)
    if share < UNEVEN * even and not (share > 0.9 and len(signs.ready) == 2):
        return ""
    return f"{most.name} got {share:.0%} of {signs.num_sent:.0f} requests, an even share is {even:.0%}"


def _full(signs: RouterSigns) -> str:
    found = [one for one in signs.ready if one.kv_usage_fraction >= FULL_KV]
    return ", ".join(f"{one.name} {one.kv_usage_fraction:.0%}" for one in found)


def _often(number: float, signs: RouterSigns, words: str) -> str:
    return (
        f"{number:.0f} of {signs.num_sent:.0f} requests {words}" if number > OFTEN * max(signs.num_sent, MANY) else ""
    )


EVIDENCE: Mapping[str, Callable[[RouterSigns], str]] = {
    "no-replica": lambda signs: "" if signs.ready else f"none of {len(signs.replicas)} is ready",
    "breaker": _broken,
    "replica-down": _down,
    "replica-failing": _failing,
    "parked": lambda signs: f"{signs.num_parked:.0f} wait in the router" if signs.num_parked > 0.0 else "",
    "idle-beside-queue": _idle_beside_queue,
    "skew": _skew,
    "replica-kv-full": _full,
    "router-refuses": lambda signs: _often(signs.num_refused, signs, "refused"),
    "retries": lambda signs: (
        _often(signs.num_retries, signs, "retried") or _often(signs.num_failovers, signs, "continued elsewhere")
    ),
    "router-slow": lambda signs: (
        f"overhead p99 {1e3 * signs.overhead_p99_s:,.1f} ms" if signs.overhead_p99_s > SLOW_S else ""
    ),
}
"""How each fault of `rules.json` shows; empty where it is not there."""

ROUTER_RULES = tuple(KnownFault(**fault) for fault in known_faults("router"))
