"""What `/metrics` says of the whole server: every model's numbers, the pool's, the machine's, and what it all cost."""

import time
from collections.abc import Callable

from penstock.metrics.exposition import Counter, Gauge, Metric, exposition_of_all
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.served import ServedModels


class ServerCounters:
    """Numbers of the server itself beside those its models keep."""

    def __init__(self, models: ServedModels, pool: ModelPool | None, price_per_hour: float | None) -> None:
        self.machine: Callable[[], list[Metric]] = list
        """What the machine says of itself."""
        self.http_responses = Counter("penstock_http_responses", "Answers sent, by route and status")
        self._models = models
        self._pool = pool
        self._price_per_hour = price_per_hour
        self._start_s = time.monotonic()

    def render(self) -> str:
        models, pool = self._models, self._pool
        groups = [(model.meters.metrics, {"model_name": model.known_name}) for model in models]
        first = {"model_name": models.first.known_name}
        if models.adapters is not None:
            groups.append((list(models.adapters.metrics()), first))
        if pool is not None:
            groups += [(pool.metrics(name), {"model_name": name}) for name in pool.models]
        groups.append(([self.http_responses, *self._money()], first))
        groups.append((self.machine(), {}))
        return exposition_of_all(groups)

    def _money(self) -> list[Metric]:
        """What was spent since the start, and what 1,000 generated tokens came to, where an hour has a price."""
        if self._price_per_hour is None:
            return []
        spent = Counter("penstock_cost_dollars", "Dollars spent since the start, by price-per-hour")
        spent.add(self._price_per_hour / 3600.0 * (time.monotonic() - self._start_s))
        num_tokens = sum(model.meters.output_tokens.total for model in self._models)
        each = 1000.0 * spent.total / num_tokens if num_tokens else 0.0
        return [spent, Gauge("penstock_dollars_per_1k_tokens", "Dollars of 1,000 generated tokens", lambda: each)]
