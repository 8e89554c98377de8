"""What the operator asks of several models in one server."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import bytes_of
from penstock.errors import ConfigError

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9.]+)(ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Several models, each loaded when the first request names it."""

    models: tuple[str, ...] = field(default=(), metadata={"flag": "model", "metavar": "NAME=MODEL"})
    """Model to serve under a name, loaded when a request names it (give the flag several times); with `,pin` after it, loaded
    at once and kept; with `,keep_alive=10m`, kept for so long after its last request"""
    models_dir: Path | None = None
    """Directory whose .gguf files and model folders are all served, each under its own name"""
    models_memory: str | None = None
    """Most memory for all models together, such as 2GiB: whichever was used least lately leaves (default: --memory-fraction of
    what is free at start)"""
    keep_alive: str = "-1"
    """How long an unused model stays loaded, such as 10m; -1 for as long as there is room"""

    def __post_init__(self) -> None:
        if self.models_memory is not None:
            bytes_of("--models-memory", self.models_memory)
        keep_alive_of("--keep-alive", self.keep_alive)

    @property
    def is_asked(self) -> bool:
        return bool(self.models) or self.models_dir is not None


def keep_alive_of(flag: str, text: str) -> float:
    """Seconds that an unused model stays loaded; infinite where it is to stay."""
    seconds = duration_s(text)
    if seconds is None:
        raise ConfigError(f'{flag} is {text!r}; write a duration such as "10m", a number of seconds, or -1 for ever')
    return math.inf if seconds < 0.0 else seconds


def duration_s(text: str) -> float | None:
    """Seconds of a duration as Go writes it (`10m`, `1h30m`) or of a number of seconds; None for what is neither."""
    text = text.strip()
    sign, text = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    parts = _DURATION.findall(text)
    try:
        if parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
        else:
            seconds = float(text)
    except ValueError:
        return None
    return sign * seconds if math.isfinite(seconds) else None
