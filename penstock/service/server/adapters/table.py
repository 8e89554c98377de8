"""Adapters of a served model by name. The engine knows them by their paths; which file a name may mean is known here alone."""

import collections
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.config import AdapterConfig
from penstock.metrics.exposition import Counter, Gauge, GaugeTable, Metric
from penstock.runtime.core.request import mix_of
from penstock.service.server.http.faults import invalid, not_found
from penstock.service.server.served import AdaptedModel, ServedModel

COUNTED = {
    "read": "Adapters read from disk",
    "placed": "Adapters laid on the device",
    "evicted": "Adapters taken from the device",
}


MOST_SHOWN = 40


class AdapterTable:
    """The adapters of one served model, by name."""

    def __init__(self, base: ServedModel, config: AdapterConfig) -> None:
        self._base = base
        self._folder = None if config.adapters_dir is None else Path(config.adapters_dir)
        self.max_adapters = config.max_adapters
        self._models = {name: AdaptedModel(base, name, path) for name, path in config.by_name.items()}

    def __iter__(self) -> Iterator[AdaptedModel]:
        return iter(self._models.values())

    def get(self, name: str) -> AdaptedModel | None:
        """Also several under one name with their scales, as `one*0.5+other`."""
        found = self._models.get(name)
        if found is not None or not ("*" in name or "+" in name):
            return found
        mix = mix_of(name, {model.name: model.adapter for model in self})
        return None if mix is None else AdaptedModel(self._base, name, mix)

    def path_of(self, asked: str) -> str:
        """A path an admin named: inside of the adapters' directory, links followed."""
        if self._folder is None:
            raise invalid("adapters are loaded from a directory; serve with --adapters-dir DIR", "lora_path")
        folder = self._folder.resolve()
        try:
            path = (folder / asked).resolve()
            is_there = path.exists()
        except (OSError, RuntimeError, ValueError):  # too long a name, links in a circle, a zero byte
            raise invalid(
                f"lora_path {asked[:80]!r} is no path; name an adapter in --adapters-dir", "lora_path"
            ) from None
        if not path.is_relative_to(folder) or path == folder:
            raise invalid("lora_path leads out of --adapters-dir; name an adapter inside of it", "lora_path")
        if not is_there:
            raise not_found(f"{asked[:200]!r} is not in --adapters-dir", "lora_path")
        return str(path)

    async def load(self, name: str, path: str) -> None:
        answer = await self._base.client.order_adapter(path)
        if answer.facts is None:
            raise invalid(answer.error, "lora_path")
        self._models[name] = AdaptedModel(self._base, name, path)

    async def unload(self, name: str) -> None:
        """The name is gone at once; requests that have begun go on, and this waits for them."""
        model = self._models.pop(name)
        if not any(other.adapter == model.adapter for other in self._models.values()):
            await self._base.client.order_adapter(model.adapter, is_unload=True)

    def value(self) -> list[dict[str, Any]]:
        """All of them, as an operator reads them."""
        counts, opened = self._base.client.adapters, self._opened()
        resident = frozenset() if counts is None else frozenset(counts.resident)
        return [
            {
                "id": number,
                "name": model.name,
                "path": model.adapter,
                "scale": 1.0,
                "is_resident": model.adapter in resident,
                "num_open": opened[model.adapter],
            }
            for number, model in enumerate(self)
        ]

    def view(self) -> dict[str, Any]:
        """As the dashboard shows them: those in use first, then those on the device, a screen of them."""
        counts, rows = self._base.client.adapters, self.value()
        rows.sort(key=lambda row: (-row["num_open"], not row["is_resident"], row["name"]))
        shown = [{name: row[name] for name in ("name", "is_resident", "num_open")} for row in rows[:MOST_SHOWN]]
        counted = {name: 0 if counts is None else getattr(counts, f"num_{name}") for name in (*COUNTED, "waiting")}
        return {"num_known": len(rows), "max_resident": self.max_adapters, "rows": shown, **counted}

    def _opened(self) -> collections.Counter[str]:
        """Requests that have not ended, by their adapter's path."""
        return collections.Counter(stream.request.adapter for stream in self._base.client.streams)

    def metrics(self) -> list[Metric]:
        """vLLM's gauge of who runs and who waits, and counts of our own."""
        running: set[str] = set()
        waiting: set[str] = set()
        paths = {model.adapter: model.name for model in self}
        for stream in self._base.client.streams:
            name = paths.get(stream.request.adapter)
            if name is not None:
                (running if stream.is_started else waiting).add(name)
        labels = (
            ("max_lora", str(self.max_adapters)),
            ("running_lora_adapters", ",".join(sorted(running))),
            ("waiting_lora_adapters", ",".join(sorted(waiting))),
        )
        info, opened = "Adapters that run and that wait; the value is the time", self._opened()
        rows = [((("adapter", one.name),), opened[one.adapter]) for one in self if opened[one.adapter]]
        counts = self._base.client.adapters
        counted = {name: 0 if counts is None else getattr(counts, f"num_{name}") for name in COUNTED}
        return [
            Gauge("vllm:lora_requests_info", info, time.time, labels),
            GaugeTable("penstock_adapter_requests", "Requests open, by adapter", rows),
            *(Counter(f"penstock_adapters_{name}", words, counted[name]) for name, words in COUNTED.items()),
        ]
