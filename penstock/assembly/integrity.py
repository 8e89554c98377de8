"""Is the model what it was? Checksums of fetched files, and a canary: the first tokens of a fixed prompt, kept between runs.

Files can rot and memory can be bad without anything failing: answers only become other answers. Checksums are compared in the
background after a start, so that they delay no request; a canary that changes on the same machine, version, settings and
files means that something did. Either takes the readiness of a server away, or of several models keeps the one from being
served, and says why.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penstock.assembly.text import fetched_path
from penstock.config import EngineConfig
from penstock.console.files import cache_folder, write_file
from penstock.errors import ConfigError
from penstock.runtime.formats.hub import default_cache
from penstock.runtime.formats.source import LocalSource, parse_source
from penstock.runtime.formats.store import StoreEntry, damaged_files, find_entry, installed
from penstock.service.server.served import ServedModel
from penstock.service.server.threads import on_daemon_thread
from penstock.tools.measure.this_machine import machine_facts

CANARY_PROMPT = tuple(range(5, 37))
CANARY_TOKENS = 16


def find_fetched(path: Path) -> StoreEntry | None:
    """The fetched model that this path belongs to."""
    return next((entry for entry in installed(default_cache()) if entry.path.resolve() == path.resolve()), None)


def find_named(source: str) -> StoreEntry | None:
    """The fetched model that is asked for so; nothing is fetched, and what is damaged stays."""
    where = parse_source(source)
    if isinstance(where, LocalSource):
        return find_fetched(where.path)
    return find_entry(default_cache(), str(where))


def damage_of(path: Path) -> list[str]:
    """Files of a fetched model that differ from what was fetched; none for files of one's own, which nobody vouched for."""
    entry = find_fetched(path)
    return [] if entry is None else damaged_files(entry)


def stamps_of(path: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files: other ones were put there on purpose; damage changes none of them."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = ((file.name, file.stat()) for file in files if file.is_file())
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


class Canary:
    """What a model answered the first time on this machine, with this version and these settings."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """`facts` are all that may change the answer for good reasons."""
        name = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
        self._path = folder / "canaries" / f"{name}.json"

    def has_changed(self, token_ids: Sequence[int]) -> bool:
        """The answer is another than the first one; the first is kept. A place that cannot be written keeps none."""
        try:
            return bool(json.loads(self._path.read_text()) != list(token_ids))
        except (OSError, ValueError):  # the first time, or a file that was cut short
            with contextlib.suppress(ConfigError):
                write_file(self._path, json.dumps(list(token_ids)))
            return False


class ModelVerifier:
    """Compares a model with what it was, as far as anybody kept that."""

    def __init__(self, source: str, engine: EngineConfig, version: str) -> None:
        engine = replace(engine, model=replace(engine.model, model=source))
        machine = machine_facts()
        self._source = source
        self._path: Path | None = None
        self._facts = {"version": version, "machine": machine, "engine": asdict(engine)}
        self._has_canary = not machine["gpus"]
        """On a GPU the order of additions, and with it the rounding, may differ from run to run."""
        self._damaged: tuple[Any, list[str]] = (None, [])
        """Files that were found damaged, and their stamps then: they are read again only when those change."""

    def _find(self) -> Path | None:
        """Where the files are that the engine has: asked once, as damaged files may be fetched anew."""
        if self._path is None:
            self._path = fetched_path(self._source)
        return self._path

    def damage(self) -> str:
        """What is wrong with the files; empty if nothing is, or nothing is known of them. Blocks while they are read."""
        path = self._find()
        if path is None:
            return ""
        stamps = stamps_of(path)
        known, names = self._damaged
        if not names or known != stamps:
            names = damage_of(path)
            self._damaged = stamps, names
        return f"files of the model are damaged: {', '.join(names[:5])}; fetch it again" if names else ""

    async def change(self, model: ServedModel) -> str | None:
        """What is wrong with the answers; None where they cannot be compared now, as other requests run."""
        if not self._has_canary or not model.facts.can_generate:
            return ""
        path = await on_daemon_thread(self._find, "verify")
        if path is None:
            return ""
        token_ids = await model.greedy_tokens(CANARY_PROMPT, CANARY_TOKENS)
        if not token_ids:
            return None
        canary = Canary(cache_folder(), self._facts | {"path": path, "files": stamps_of(path)})
        if canary.has_changed(token_ids):
            return "the model answers otherwise than it did on this machine; run `penstock verify`"
        return ""
