"""A few of an operation's examples that together show everything all of them show.

What an example shows: the types of its tensors, the size of each axis, whether its numbers are finite, and the value of
everything else. Combinations are not counted, so a grid of examples is walked along a diagonal.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

Trait = tuple[str, str]


def covering(examples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    shown = [set(_traits(example, "")) for example in examples]
    left = set[Trait]().union(*shown)
    chosen = []
    while left:
        best = max(range(len(examples)), key=lambda index: len(shown[index] & left))
        chosen.append(examples[best])
        left -= shown[best]
    return chosen


def _traits(value: Any, path: str) -> Iterator[Trait]:
    if isinstance(value, torch.Tensor):
        yield path, str(value.dtype)
        yield from ((f"{path}.size({axis})", str(size)) for axis, size in enumerate(value.shape))
        if value.is_floating_point():
            yield f"{path} finite", str(bool(torch.isfinite(value.float()).all()))
    elif is_dataclass(value):
        for field in fields(value):
            yield from _traits(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        yield path, type(value).__name__
        for index, item in enumerate(value):
            yield from _traits(item, f"{path}[{index}]")
    else:
        yield path, repr(value)
