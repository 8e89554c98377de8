"""What the router counts. Labels come from configuration and from what was answered, never from what a client typed."""

from collections.abc import Callable

from penstock.metrics.exposition import (
    DURATION_BUCKETS,
    TTFT_BUCKETS,
    Buckets,
    Counter,
    Gauge,
    GaugeTable,
    Labels,
    Metric,
    exposition,
)
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState

OVERHEAD_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


OF_REPLICAS: tuple[tuple[str, str, Callable[[LiveReplica], float]], ...] = (
    (
        "penstock_router_replica_ready",
        "1 while it takes requests",
        lambda one: one.state is ReplicaState.READY and not one.is_draining,
    ),
    ("penstock_router_replica_pending", "Requests it has", lambda one: one.num_pending),
    ("penstock_router_replica_waiting", "Requests waiting there", lambda one: one.num_waiting),
    ("penstock_router_replica_kv_usage", "Share of its KV cache in use", lambda one: one.kv_usage_fraction),
    ("penstock_router_replica_breaker_open", "1 while it is left alone", lambda one: not one.breaker.is_closed),
)


class RouterMeters:
    def __init__(
        self, fleet: LiveFleet, policy: str, num_parked: Callable[[], int], num_open: Callable[[], int]
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._num_parked = num_parked
        self._num_open = num_open
        self.requests = Counter("penstock_router_requests", "Requests that ended, by model, status and outcome")
        self.choices = Counter("penstock_router_choices", "Requests sent, by replica")
        self.retries = Counter("penstock_router_retries", "Requests sent to another replica before their first byte")
        self.failovers = Counter("penstock_router_failovers", "Answers that went on at another replica")
        self.hedges = Counter("penstock_router_hedges", "Requests sent to a second replica because the first was late")
        self.fallbacks = Counter("penstock_router_fallbacks", "Requests that went to the next model of their chain")
        self.handovers = Counter("penstock_router_handovers", "Prompts computed for another replica, by how that ended")
        self.handover_choices = Counter(
            "penstock_router_handover_choices", "Where prompts were computed, among replicas with roles, and why"
        )
        self.failures = Counter("penstock_router_replica_failures", "Requests that a replica failed, by replica")
        self.refused = Counter("penstock_router_refused", "Requests we answered with an error of our own, by code")
        self.guardrails = Counter("penstock_router_guardrails", "What guardrails said, by stage and outcome")
        self.tokens = Counter("penstock_router_tokens", "Tokens relayed, by model and kind")
        self.blocks_expected = Counter(
            "penstock_router_prefix_blocks_expected", "Blocks of prompts expected in a cache"
        )
        self.blocks_asked = Counter("penstock_router_prefix_blocks_asked", "Blocks of prompts sent")
        self.chosen_s = Buckets(
            "penstock_router_overhead_seconds", "From a whole request to its sending", OVERHEAD_BUCKETS
        )
        self.first_byte_s = Buckets("penstock_router_first_byte_seconds", "Seconds to the first byte", TTFT_BUCKETS)
        self.request_s = Buckets("penstock_router_request_seconds", "Seconds a request takes", DURATION_BUCKETS)

    def render(self, more: list[Metric]) -> str:
        own = [metric for metric in vars(self).values() if isinstance(metric, Counter | Buckets)]
        gauges: list[Metric] = [
            Gauge("penstock_router_info", "How requests are placed", lambda: 1.0, (("policy", self._policy),)),
            Gauge("penstock_router_open", "Requests in progress", lambda: float(self._num_open())),
            Gauge("penstock_router_parked", "Requests waiting for a replica", lambda: float(self._num_parked())),
            *(GaugeTable(name, help, self._rows(read)) for name, help, read in OF_REPLICAS),
        ]
        return exposition([*gauges, *own, *more], {})

    def _rows(self, read: Callable[[LiveReplica], float]) -> list[tuple[Labels, float]]:
        return [((("replica", one.name),), read(one)) for one in self._fleet.own]
