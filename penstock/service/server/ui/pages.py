"""What the pages have of their own beside the models: what goes on in each, tools that run for them, refusals, power."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.metrics.exposition import Counter, Metric
from penstock.service.server.front import Front
from penstock.service.server.http.exchange import exchange_of
from penstock.service.server.served import ServedModel
from penstock.service.server.ui.live import LiveView
from penstock.service.server.ui.tools import Tools

EVERY_S = 2.0
"""Between two readings of power."""
ENERGY = "_energy_joules"
MAX_KEPT = 200
"""Refusals."""
MAX_MESSAGE = 240
OWN_PREFIXES = ("/app/", "/assets/")
"""What the web app asks for itself is no client's request."""


class Pages:
    """Attached to the application by listeners; the server runs without it."""

    def __init__(self, front: Front) -> None:
        self.tools = Tools(lambda: front.health.num_open > 0)
        front.health.at_drain.append(self.tools.close)
        self.refusals = RefusalLog()
        self.power = PowerMeter(lambda: front.counters.machine(), front.config.price_per_hour)
        self._lives = {model.client: LiveView(model.client, model.meters, model.admission) for model in front.models}
        for model in front.models:
            model.meters.observers.append(self.live(model).ledger)

    def live(self, model: ServedModel) -> LiveView:
        """What goes on in a model's engine, those of its adapters included."""
        return self._lives[model.client]


class PowerMeter:
    """Watts, where power can be read: the change of counters of energy over the last readings; and what an hour costs."""

    def __init__(self, metrics: Callable[[], Sequence[Metric]], dollars_per_hour: float | None) -> None:
        self._metrics = metrics
        self._dollars_per_hour = dollars_per_hour
        self._readings: deque[tuple[float, float]] = deque(maxlen=5)
        self._last_s = -EVERY_S

    def view(self, now: float) -> dict[str, Any]:
        if now - self._last_s >= EVERY_S:
            self._last_s = now
            counters = [one for one in self._metrics() if isinstance(one, Counter) and one.name.endswith(ENERGY)]
            if counters:
                self._readings.append((now, sum(one.total for one in counters)))
        return {"watts": self._watts, "dollars_per_hour": self._dollars_per_hour}

    @property
    def _watts(self) -> float | None:
        if len(self._readings) < 2:
            return None
        (first_s, first), (last_s, last) = self._readings[0], self._readings[-1]
        return max(last - first, 0.0) / (last_s - first_s)  # a counter that began again says nothing


class RefusalRecord(NamedTuple):
    number: int
    time_s: float
    """On the wall's clock."""
    status: int
    code: str
    message: str
    path: str
    tenant: str
    call_id: str


class RefusalLog:
    """The requests that were turned away lately: when, with which status, and why. Never what they asked for."""

    def __init__(self) -> None:
        self.num_refused = 0
        self._kept: deque[RefusalRecord] = deque(maxlen=MAX_KEPT)

    def note(self, scope: Any, status: int, message: str, code: str, time_s: float) -> None:
        path = scope["path"]
        if path.startswith(OWN_PREFIXES):
            return
        self.num_refused += 1
        exchange = exchange_of(scope)
        tenant, call_id = exchange.tenant, exchange.name
        shown = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."
        self._kept.append(RefusalRecord(self.num_refused, time_s, status, code, shown, path[:80], tenant, call_id))

    def since(self, number: int, tenant: str | None) -> list[dict[str, Any]]:
        """Refusals after that number that a tenant may see, None for everybody's."""
        return [one._asdict() for one in self._kept if one.number > number and (tenant is None or one.tenant == tenant)]
