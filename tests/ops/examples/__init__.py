"""Arguments that operations are called with, so that kernels can be held to definitions: a file for each file of `ops/`.

A kernel that is registered is a kernel that is tested: it is looked for among all operations, and tried over everything that
its operation has here. An operation that has nothing here fails its test.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from penstock.runtime.ops.op import Op

Examples = Callable[[torch.device], Iterator[tuple[Any, ...]]]
"""Makes argument lists on a device, the same ones every time."""

EXAMPLES: dict[str, Examples] = {}


def examples_of(op: Op[..., Any]) -> Callable[[Examples], Examples]:
    """The decorated function makes those of an operation."""

    def register(make: Examples) -> Examples:
        EXAMPLES[op.name] = make
        return make

    return register


def arguments_of(op: Op[..., Any], device: str = "cpu") -> Iterator[tuple[Any, ...]]:
    _load()
    return EXAMPLES[op.name](torch.device(device))


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
