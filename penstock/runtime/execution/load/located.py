"""Where in its file an adapter's matrices lie, in the base's own terms, found without reading a number.

Adapters that were trained alike lie alike: this is found once for all of them.
"""

from pathlib import Path
from typing import NamedTuple

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.adapters import TABLES, Adapter, AdapterReading, modules_of, open_adapter
from penstock.runtime.execution.load.copied import PLAIN, LocatedTensors
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec


class LocatedAdapter(NamedTuple):
    """An adapter whose matrices have no numbers: they tell where those lie."""

    adapter: Adapter
    located: LocatedTensors


def locate_adapter(
    path: Path, first: int, spec: ModelSpec, max_rank: int, shard: ModelShard | None
) -> LocatedAdapter | None:
    """Where the numbers of an adapter lie in its file, from byte `first` on; None where they have to be read to be laid out."""
    try:
        checkpoint, settings, _ = open_adapter(path, spec)
        modules = modules_of(checkpoint)
        tensors = [raw for module in modules.values() for raw in module.parts.values()]
        kinds = {raw.dtype for raw in tensors}
        if len(kinds) > 1 or not kinds <= PLAIN.keys() or first % PLAIN[tensors[0].dtype].itemsize:
            return None
        reading = AdapterReading(path, spec, settings, max_rank)
        reading.copied = located = LocatedTensors(tensors, first)
        for module in modules.values():
            reading.take(module)
        adapter = reading.adapter("", shard)
    except (ModelFileError, NotImplementedError, RuntimeError):
        return None  # reading it tells why
    if adapter.tables or adapter.experts or not adapter.changes.keys().isdisjoint(TABLES):
        return None
    is_plain = all(
        change.scales is None and located.has(change.left) and located.has(change.right) for change in adapter.thin
    )
    return LocatedAdapter(adapter, located) if is_plain else None
