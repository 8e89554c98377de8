"""Which model a name stands for: itself, a split over several, and whom to ask when one cannot answer."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.service.gateway.settings import OUTSIDE, AliasSettings, CascadeSettings


class Targets(NamedTuple):
    models: tuple[str, ...]
    """In the order in which they are asked."""
    cascade: CascadeSettings | None = None


def targets_of(name: str, aliases: Mapping[str, AliasSettings], key: str, *, may_leave: bool) -> Targets:
    """`key` decides a split: who asks with the same key (a session, else anything) gets the same side of it."""
    alias = aliases.get(name)
    if alias is None:
        return Targets((name,))
    first = alias.cascade.then if alias.cascade is not None else _drawn(alias.split, name, key) or name
    models = [first, *(model for model in alias.fallback if may_leave or not model.startswith(OUTSIDE))]
    return Targets(tuple(dict.fromkeys(models)), alias.cascade)


def _drawn(split: Mapping[str, float], name: str, key: str) -> str:
    if not split:
        return ""
    number = int.from_bytes(blake2b(f"{name}\0{key}".encode("utf-8", "replace"), digest_size=8).digest(), "little")
    place = number / 2**64 * sum(split.values())
    for model, share in split.items():
        place -= share
        if place < 0.0:
            return model
    return list(split)[-1]
