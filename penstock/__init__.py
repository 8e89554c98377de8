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

_HOMES = dict.fromkeys(__all__, "penstock.errors") | {
    "LLM": "penstock.offline.llm",
    "EngineConfig": "penstock.config",
    "SamplingParams": "penstock.runtime.core.request",
}


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `penstock --help` imports no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    if name == "LLM":
        import_module("penstock.runtime.preload").begin()
    return getattr(import_module(_HOMES[name]), name)
