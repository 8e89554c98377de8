"""How the engines are, whether calls are taken, and the end of taking them."""

import asyncio
import time
from collections.abc import Callable

from penstock.service.server.http.faults import busy
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.served import ServedModels, loading


class ServerHealth:
    """Of the served models together. Draining begins once and has no end."""

    def __init__(self, models: ServedModels, pool: ModelPool | None) -> None:
        self.is_draining = False
        self.at_drain: list[Callable[[], None]] = []
        """Told when draining begins: work that is no call ends then."""
        self._models = models
        self._pool = pool

    @property
    def num_open(self) -> int:
        """Calls admitted and not over, and those that wait for a model."""
        num_waiting = 0 if self._pool is None else self._pool.num_waiting
        return num_waiting + sum(model.admission.num_open for model in self._models)

    @property
    def is_alive(self) -> bool:
        """Every engine has sent something lately."""
        return all(model.is_alive for model in self._models)

    @property
    def is_silent(self) -> bool:
        """An engine that was ready has not sent so much as a sign of life."""
        return any(model.is_silent for model in self._models)

    async def is_ready(self) -> bool:
        """A token has come through the real path of every model lately, or comes now.

        Of several that come and go one is enough, so that a wrong one takes no other down; but those that are pinned are
        waited for, until they have been tried.
        """
        if self.is_draining:
            return False
        ready = await asyncio.gather(*(model.is_ready() for model in self._models))
        if self._pool is None:
            return all(ready)
        return any(ready) and not any(one.is_pinned and one.is_untried for one in self._pool.residents)

    def check_open(self) -> None:
        """Raise the error that says why no request is taken now."""
        if self.is_draining:
            raise busy("the server is shutting down; send the request elsewhere", 1, code="shutting_down")
        if self._pool is None and not any(model.is_open for model in self._models):
            raise loading()

    async def drain(self, timeout_s: float) -> None:
        """Let calls in progress end; no new ones come in."""
        self.is_draining = True
        for told in self.at_drain:
            told()
        deadline_s = time.monotonic() + timeout_s
        while self.num_open and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
