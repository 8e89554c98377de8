"""Several adapters as one, each counted times a scale: their thin matrices side by side, of all their ranks."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import torch

from penstock.errors import ModelFileError
from penstock.runtime.core.request import mix_parts
from penstock.runtime.execution.load.adapters import PERSON, Adapter, read_adapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec


def read_mix(adapter: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None = None) -> Adapter:
    """What a request's `adapter` names: a path, or several with their scales."""
    parts = mix_parts(adapter)
    read = [read_adapter(Path(path), spec, max_rank, shard) for path, _ in parts]
    scales = [scale for _, scale in parts]
    if scales == [1.0]:
        return read[0]
    for one in read:
        thin = [change for parts in one.changes.values() for change in parts if change is not None]
        if one.tables or one.experts or any(change.scales is not None for change in thin):
            raise ModelFileError(
                f"the adapter {one.path} is a DoRA or brings experts or whole matrices: ask for it alone and unscaled"
            )
    changes: dict[str, tuple[LowRank | None, ...]] = {}
    for name in dict.fromkeys(name for one in read for name in one.changes):
        columns = zip(*(one.changes.get(name, ()) or (None,) * _width(read, name) for one in read), strict=True)
        changes[name] = tuple(_mixed(column, scales) for column in columns)
    mixed = replace(read[0], digest=_digest(read, scales), path=adapter, changes=changes)
    if mixed.rank > max_rank:
        raise ModelFileError(f"the adapters together have rank {mixed.rank}; at most {max_rank} (--max-adapter-rank)")
    return mixed


def _width(read: Sequence[Adapter], name: str) -> int:
    return next(len(one.changes[name]) for one in read if name in one.changes)


def _mixed(changes: Sequence[LowRank | None], scales: Sequence[float]) -> LowRank | None:
    given = [(change, scale) for change, scale in zip(changes, scales, strict=True) if change is not None]
    if not given:
        return None
    left = torch.cat([change.left.float() * scale for change, scale in given], 1)
    return LowRank(left, torch.cat([change.right.float() for change, _ in given]), given[0][0].first)


def _digest(read: Sequence[Adapter], scales: Sequence[float]) -> str:
    text = " ".join(f"{one.digest}*{scale}" for one, scale in zip(read, scales, strict=True))
    return blake2b(text.encode(), digest_size=16, person=PERSON).hexdigest()
