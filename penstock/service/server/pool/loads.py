"""How one model comes and goes: its engine is begun and ended, its words are read, its files looked at.

Knows nothing of other models, of who waits, or of states: what goes wrong is raised.
"""

import asyncio
from collections.abc import Callable

from penstock.errors import EngineError, ModelFileError
from penstock.service.server.pool.memory import promised_bytes
from penstock.service.server.pool.model import PooledModel
from penstock.service.server.pool.words import KeptWords
from penstock.service.server.threads import on_daemon_thread


class ModelLoads:
    """Owns the tasks that keep engines alive."""

    def __init__(self) -> None:
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self._words = KeptWords()

    @property
    def supervisors(self) -> list["asyncio.Task[None]"]:
        return list(self._supervisors.values())

    async def check(self, pooled: PooledModel) -> None:
        """Look at the files. Raises for those that no engine could load, or that are known to be damaged and still are."""
        resident, verifier = pooled.resident, pooled.verifier
        pooled.served.card, resident.estimated_bytes = await asyncio.to_thread(pooled.check)
        if resident.fault and verifier is not None and (fault := await on_daemon_thread(verifier.damage, "verify")):
            raise ModelFileError(fault)

    async def bring_in(self, pooled: PooledModel) -> None:
        """Weights and words at the same time; whatever fails first is raised."""
        client, resident = pooled.served.client, pooled.resident
        client.reopen()
        supervisor = self._supervisors[resident.name] = asyncio.create_task(client.run())
        self._words.take(pooled.served)
        read = pooled.open_text if not pooled.served.is_open else lambda: pooled.served.text
        words = on_daemon_thread(read, "words")
        ready = asyncio.ensure_future(client.ready.wait())
        try:
            for awaited in (words, ready):
                await asyncio.wait((supervisor, awaited), return_when=asyncio.FIRST_COMPLETED)
                if supervisor.done():
                    supervisor.result()
                    raise EngineError("its engine ended before it was ready")
                awaited.result()
        finally:
            ready.cancel()
        pooled.served.text = words.result()
        resident.measured_bytes = promised_bytes(client)

    async def take_out(self, pooled: PooledModel) -> None:
        await pooled.served.client.stop()
        supervisor = self._supervisors.pop(pooled.resident.name, None)
        if supervisor is not None:
            await asyncio.gather(supervisor, return_exceptions=True)
        if pooled.served.is_open:
            self._words.keep(pooled.served)

    def on_end(self, pooled: PooledModel, call: Callable[[BaseException], None]) -> None:
        """Call when the engine cannot be kept alive, or has ended."""

        def ended(supervisor: "asyncio.Task[None]") -> None:
            if self._supervisors.get(pooled.resident.name) is supervisor:
                del self._supervisors[pooled.resident.name]
                self._words.keep(pooled.served)
            fault = None if supervisor.cancelled() else supervisor.exception()
            call(fault or EngineError("its engine ended"))

        self._supervisors[pooled.resident.name].add_done_callback(ended)
