"""Several models behind one server: from what the operator wrote to a pool of engines.

--model NAME=MODEL[,pin][,keep_alive=10m]     --models-dir DIR: its .gguf files and model folders
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from penstock.assembly.banner import pool_banner
from penstock.assembly.integrity import ModelVerifier
from penstock.assembly.machines import is_arithmetic
from penstock.assembly.serving import package_version, watermark_of
from penstock.assembly.text import card_of, fetch, open_text
from penstock.config import EngineConfig, bytes_of
from penstock.errors import ConfigError, PenstockError
from penstock.log import say
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.files import dummy_spec, no_words, open_files
from penstock.runtime.sizing import GIB
from penstock.service.config import ServerConfig
from penstock.service.server.front import Front
from penstock.service.server.pool.config import PoolConfig, keep_alive_of
from penstock.service.server.pool.loads import WORD_BYTES, CheckedFiles, PooledModel
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.pool.resident import Resident
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.server.text import NO_CARD

LOGGER = logging.getLogger(__name__)
PROCESS_BYTES = 320 << 20
"""What an engine's process takes beside weights, words and cache: interpreter, torch, buffers."""
SPREAD = 1.25
"""Weights in memory beside their size in the file: some are widened."""
PLAIN_BYTES = 80 << 20
"""The same of one that computes by arithmetic alone."""
KV_SHARE = 8
"""Without another word each model's cache may take this part of the memory of all, at most a gibibyte."""
MIB = 2**20
SCHEMES = ("hf", "pypi", "oracle", "scripted", "dummy")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

CommandOf = Callable[[str], list[str]]
"""The command that runs the engine of a model."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model as the operator named it."""

    name: str
    source: str
    is_pinned: bool = False
    keep_alive_s: float | None = None


def entries_of(config: PoolConfig, first: str | None) -> list[ModelEntry]:
    """All models that are asked for. `first` is one named without a flag. Raises ConfigError for a name given twice."""
    entries = [] if first is None else [ModelEntry(_short_name(first), first)]
    entries += [entry_of(text) for text in config.models]
    names = [entry.name for entry in entries]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"--model names {', '.join(repeated)} more than once; give each model a name of its own")
    if config.models_dir is not None:
        entries += [entry for entry in _entries_in(config.models_dir) if entry.name not in names]
    return entries


def entry_of(text: str) -> ModelEntry:
    """`NAME=MODEL`, or a model that goes by its own name, with options after it."""
    words, is_pinned, keep_alive_s = text, False, None
    while True:
        rest, comma, option = words.rpartition(",")
        if comma and option == "pin":
            words, is_pinned = rest, True
        elif comma and option.startswith("keep_alive="):
            words, keep_alive_s = rest, keep_alive_of("keep_alive", option.removeprefix("keep_alive="))
        else:
            break
    name, equals, source = words.partition("=")
    if not equals or not _NAME.fullmatch(name) or name.partition(":")[0] in SCHEMES:
        name, source = _short_name(words), words
    if not source or not _NAME.fullmatch(name):
        raise ConfigError(f"--model is {text!r}; write NAME=MODEL, with a name of letters, digits and ._:-")
    return ModelEntry(name, source, is_pinned, keep_alive_s)


def _entries_in(folder: Path) -> list[ModelEntry]:
    if not folder.is_dir():
        raise ConfigError(f"--models-dir {folder} is no directory; name one with .gguf files or model folders in it")
    files = [ModelEntry(path.stem, str(path)) for path in folder.glob("*.gguf")]
    folders = [ModelEntry(path.parent.name, str(path.parent)) for path in folder.glob("*/config.json")]
    found = sorted((entry for entry in (*files, *folders) if _NAME.fullmatch(entry.name)), key=lambda one: one.name)
    if not found:
        raise ConfigError(f"--models-dir {folder} holds neither .gguf files nor model folders; put some there")
    return found


def _short_name(source: str) -> str:
    name = source.partition("==")[0].rstrip("/").rpartition("/")[2]
    return name.removesuffix(".gguf").removeprefix("pypi:").rstrip(":")


def budget_of(config: PoolConfig, engine: EngineConfig, free_bytes: int | None) -> int | None:
    """Memory for all models: as asked, else a share of what is free; None where neither is known."""
    if config.models_memory is not None:
        return bytes_of("--models-memory", config.models_memory)
    return None if free_bytes is None else int(free_bytes * engine.cache.memory_fraction)


class PooledEngines:
    """What `serve` runs for several models: nothing is loaded before it is asked for, unless it is pinned."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        engine: EngineConfig,
        server: ServerConfig,
        command_of: CommandOf,
        *,
        budget_bytes: int | None,
        keep_alive_s: float,
    ) -> None:
        self._server = server
        verifiers = {entry.name: ModelVerifier(entry.source, engine, package_version()) for entry in entries}
        engine = with_cache_share(engine, budget_bytes)
        models = []
        for entry in entries:
            own = replace(engine, model=replace(engine.model, model=entry.source))
            client = EngineClient(command_of(entry.source), own, hang_s=server.hang_s)
            alive_s = keep_alive_s if entry.keep_alive_s is None else entry.keep_alive_s
            resident = Resident(entry.name, 0, entry.is_pinned, alive_s)
            served = ServedModel(client, num_tenants=server.num_tenants, num_keys=server.num_keys, resident=resident)
            served.watermark = watermark_of(server)
            check = partial(check_files, entry.source, engine)
            opener = partial(open_text, entry.source)
            models.append(PooledModel(served, resident, opener, check, verifiers[entry.name]))
        self.pool = ModelPool(models, budget_bytes, max_waiting=engine.scheduler.max_waiting)
        self.run, self.stop = self.pool.run, self.pool.stop
        self.front = Front(ServedModels(*(one.served for one in models)), server, package_version(), self.pool)

    async def until_ready(self, port: int) -> None:
        """At once: whoever asks waits for its own model."""
        say(pool_banner(self.pool.residents, self.pool.budget_bytes, self._server, port))

    async def verify(self) -> None:
        """Look at the files of each model before it is asked for."""
        for one in self.pool.models.values():
            if one.resident.is_untried and not one.resident.is_checked:
                await self.pool.check(one)


def with_cache_share(engine: EngineConfig, budget_bytes: int | None) -> EngineConfig:
    """Caches of several models share the memory: each is given a part, unless something else is asked for."""
    cache = engine.cache
    if budget_bytes is None or cache.num_blocks is not None or cache.kv_memory is not None:
        return engine
    share = max(min(budget_bytes // KV_SHARE, GIB) // MIB, 1)
    return replace(engine, cache=replace(cache, kv_memory=f"{share}MiB"))


def check_files(source: str, engine: EngineConfig) -> CheckedFiles:
    """What a model is and what it is expected to take, by its files. Raises for files that no engine could load."""
    if is_arithmetic(source):
        return CheckedFiles(NO_CARD, PLAIN_BYTES)
    if dummy_spec(source) is not None:
        raise no_words(source)
    files = open_files(source)
    card, spec = card_of(files), files.spec
    kv_bytes = 0
    if spec.generates:
        kv_bytes = GIB if engine.cache.kv_memory is None else bytes_of("--kv-memory", engine.cache.kv_memory)
        kv_bytes += spec.vocab_size * WORD_BYTES
    return CheckedFiles(card, PROCESS_BYTES + kv_bytes + int(card.size_bytes * SPREAD) + spec.vocab_size * WORD_BYTES)


def fetch_all(entries: Sequence[ModelEntry]) -> None:
    """Have all files here; one that cannot be had is told of, and keeps no other from being served."""
    for entry in entries:
        try:
            fetch(entry.source)
        except PenstockError as error:
            LOGGER.warning("%s cannot be had: %s", entry.name, error)
