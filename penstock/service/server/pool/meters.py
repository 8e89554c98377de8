"""What is counted of one of several models: its state and memory, who has it and who waits, loads and departures."""

from functools import partial

from penstock.metrics.exposition import DURATION_BUCKETS, Buckets, Counter, Gauge, Metric
from penstock.service.server.pool.resident import Residency, Resident


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
        state = "penstock_model_state", "1 for the state that a model is in"
        states = [Gauge(*state, partial(_is_in, resident, one), (("state", one.value),)) for one in Residency]
        gauges = [
            Gauge(
                "penstock_model_bytes", "Memory that a model takes", lambda: resident.num_bytes * resident.is_in_memory
            ),
            Gauge("penstock_model_requests", "Requests that have the model", lambda: resident.num_uses),
            Gauge("penstock_model_requests_waiting", "Requests that wait for a load", lambda: resident.num_waiting),
        ]
        return [*states, *gauges, self.loads, self.failures, self.unloads, self.load_s]


def _is_in(resident: Resident, state: Residency) -> float:
    return float(resident.state is state)
