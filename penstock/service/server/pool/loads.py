"""How one model comes and goes: its engine is begun and ended, its words are read, its files looked at, its memory
is known.

Reading a vocabulary takes longer than mapping the weights, and a vocabulary takes hundreds of bytes a word: the words of the
last few models that were unloaded are kept. Knows nothing of other models, of who waits, or of states: what goes wrong is
raised.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import EngineError, ModelFileError
from penstock.runtime.engine.client import EngineClient
from penstock.service.server.pool.resident import Resident
from penstock.service.server.served import ServedModel
from penstock.service.server.text import ModelCard, Text
from penstock.service.server.threads import on_daemon_thread

WORD_BYTES = 1280
"""What an engine's grammars take for each word of the vocabulary, made when it is ready already."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Memory that a process and those it began hold now; 0 where the system does not report it."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError, ValueError):
        return 0
    return own + sum(resident_bytes(int(child)) for child in children)


def taken_bytes(client: EngineClient) -> int:
    """What an engine takes now: of this machine, or of its device."""
    facts = client.facts
    if facts is not None and facts.device != "cpu":
        return sum(size for _, size in facts.memory)
    return 0 if client.pid is None else resident_bytes(client.pid)


def promised_bytes(client: EngineClient) -> int:
    """What a fresh engine may come to take: on a CPU its cache takes memory as it is written, and grammars as they are used."""
    facts = client.facts
    if facts is None or facts.device != "cpu":
        return taken_bytes(client)
    words = facts.vocab_size * WORD_BYTES if facts.can_generate else 0
    return taken_bytes(client) + dict(facts.memory).get("KV cache", 0) + words


KEPT = 4


class KeptWords:
    """The words of at most `most` models, those unloaded last."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._models: list[ServedModel] = []

    def take(self, model: ServedModel) -> None:
        """The model is loaded: its words are no longer ours to forget."""
        self._models = [one for one in self._models if one is not model]

    def keep(self, model: ServedModel) -> None:
        """The model is unloaded."""
        self.take(model)
        self._models.append(model)
        while len(self._models) > self._most:
            self._models.pop(0).forget_text()


class CheckedFiles(NamedTuple):
    """What a look at a model's files tells."""

    card: ModelCard
    num_bytes: int
    """What it is expected to take."""


class Verifier(Protocol):
    """Whether a model is what it was."""

    def damage(self) -> str:
        """What is wrong with its files; empty where nothing is, or nobody vouched for them. Blocks while they are read."""

    async def change(self, model: ServedModel) -> str | None:
        """What is wrong with its answers; None where nothing can be said. Asked of a loaded model that no request has yet."""


class PooledModel(NamedTuple):
    """A model that can be loaded."""

    served: ServedModel
    resident: Resident
    open_text: Callable[[], Text]
    """Blocks."""
    check: Callable[[], CheckedFiles]
    """Blocks. Raises PenstockError for files that no engine could load."""
    verifier: Verifier | None = None


class ModelLoads:
    """Owns the tasks that keep engines alive."""

    def __init__(self) -> None:
        self.supervisors: dict[str, asyncio.Task[None]] = {}
        self._words = KeptWords()

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
        supervisor = self.supervisors[resident.name] = asyncio.create_task(client.run())
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
        supervisor = self.supervisors.pop(pooled.resident.name, None)
        if supervisor is not None:
            await asyncio.gather(supervisor, return_exceptions=True)
        if pooled.served.is_open:
            self._words.keep(pooled.served)

    def on_end(self, pooled: PooledModel, call: Callable[[BaseException], None]) -> None:
        """Call when the engine cannot be kept alive, or has ended."""

        def ended(supervisor: "asyncio.Task[None]") -> None:
            if self.supervisors.get(pooled.resident.name) is supervisor:
                del self.supervisors[pooled.resident.name]
                self._words.keep(pooled.served)
            fault = None if supervisor.cancelled() else supervisor.exception()
            call(fault or EngineError("its engine ended"))

        self.supervisors[pooled.resident.name].add_done_callback(ended)
