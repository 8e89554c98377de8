"""Penstock: an inference system for language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.errors import (
        CapacityError,
        ConfigError,
        EngineError,
        ModelFileError,
        PenstockError,
        RequestError,
    )
    from penstock.offline.llm import LLM
    from penstock.runtime.core.request import SamplingParams

_HOMES = {
    "LLM": "penstock.offline.llm",
    "EngineConfig": "penstock.config",
    "SamplingParams": "penstock.runtime.core.request",
}
"""Where public names are; errors are in their own module."""

__all__ = [
    "LLM",
    "CapacityError",
    "ConfigError",
    "EngineConfig",
    "EngineError",
    "ModelFileError",
    "PenstockError",
    "RequestError",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `penstock --help` imports no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    if name == "LLM":
        import_module("penstock.runtime.preload").begin()
    return getattr(import_module(_HOMES.get(name, "penstock.errors")), name)
