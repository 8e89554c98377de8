"""Kernels as the host launches them, or only asks for them.

While somebody is asking, a launch computes nothing and compiles nothing: it leaves word of the variant it would have needed.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from triton import knobs
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

IS_ASKING: ContextVar[bool] = ContextVar("is_asking", default=False)


class KernelEntry:
    """A kernel that the host launches. Functions that kernels are made of are none."""

    def __init__(self, function: JITFunction[Any]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        if IS_ASKING.get():
            return partial(self.function.warmup, grid=grid)
        return self.function[grid]  # type: ignore[no-any-return]


ENTRIES: list[KernelEntry] = []


def entry(function: Any) -> KernelEntry:
    ENTRIES.append(KernelEntry(function))
    return ENTRIES[-1]


def settle_keys() -> None:
    """Have every kernel hashed, in the same order in every process.

    Before 3.9 Triton's hash of a kernel depended on which of the functions it calls had been hashed before it: what one process
    compiled, another did not find."""
    functions = [each.function for each in ENTRIES if isinstance(each.function, JITFunction)]  # none is interpreted
    for function in sorted(functions, key=lambda each: (each.__module__, each.__name__)):
        function.cache_key  # noqa: B018


class Variant(NamedTuple):
    """A kernel with the types, constants and options of some launch."""

    function: JITFunction[Any]
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]

    @property
    def source(self) -> ASTSource:
        return ASTSource(self.function, self.signature, self.constants, self.attributes)


def encode_variant(variant: Variant) -> dict[str, Any]:
    """As JSON holds it, for another process."""
    return {
        "function": [variant.function.__module__, variant.function.__name__],
        "signature": variant.signature,
        "constants": [[key, value] for key, value in variant.constants.items()],
        "attributes": [[key, value] for key, value in variant.attributes.items()],
        "options": variant.options,
    }


def decode_variant(payload: dict[str, Any]) -> Variant:
    module, name = payload["function"]
    found = getattr(import_module(module), name)
    constants, attributes = ({_key(key): value for key, value in payload[kind]} for kind in ("constants", "attributes"))
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in payload["options"].items()}
    return Variant(found.function, payload["signature"], constants, attributes, options)


def _key(value: Any) -> Any:
    """Keys are names, or places in nested arguments."""
    return tuple(map(_key, value)) if isinstance(value, list) else value


@contextmanager
def asking() -> Iterator[list[Variant]]:
    """Fills the list with what launches in here would have to compile; none of it twice."""
    asked: list[Variant] = []
    known: set[str] = set()

    def note(*, fn: Any, compile: dict[str, Any], **rest: object) -> bool:
        text = compile["specialization_data"]
        if text not in known:
            known.add(text)
            options = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in json.loads(text)["options"].items()
            }
            (attributes,) = compile["configs"]
            asked.append(Variant(fn.jit_function, compile["signature"], compile["constants"], attributes, options))
        return True  # which keeps it from being compiled here

    token = IS_ASKING.set(True)
    try:
        with knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = note
            yield asked
    finally:
        IS_ASKING.reset(token)
