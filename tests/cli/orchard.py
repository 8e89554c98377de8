"""A command with a field of every kind, to test what is around commands. Imagined: it counts apples."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.console.show import print_json
from penstock.errors import CapacityError, ConfigError, EngineError, RequestError

ERRORS = {error.__name__: error for error in (CapacityError, ConfigError, EngineError, RequestError, BrokenPipeError)}


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree of the orchard."""

    kind: Literal["pippin", "russet", "codlin"] = "russet"
    """Kind of apple"""
    graft: Literal[1, 2, 3] = 2
    """Grafts made"""
    height_m: float = 4.5
    """Height in metres"""
    pruned: bool = True
    """Cut back in winter"""


@dataclass(frozen=True, slots=True)
class Garden:
    """All of the ground."""

    tree: Tree = field(default_factory=lambda: Tree(height_m=3.0))
    note: str = 'a = "b" # c'
    """What the gardener says"""
    motto: str = "first line\nsecond line"
    """What is cut above the gate"""
    years: int | None = None
    """Age in years
    (default: nobody knows)"""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Count apples in an orchard.

    Trees are counted one by one.
    """

    garden: Garden = field(default_factory=Garden)
    picker: str = field(metadata={"positional": True})
    """Who picks"""
    baskets: tuple[str, ...] = field(default=(), metadata={"positional": True})
    """Where the apples go"""
    apples: int = 12
    """Apples on a tree"""
    weights: tuple[float, ...] = (1.5, 2.0)
    """Weights of the pickers' bags"""
    label: tuple[str, ...] = ()
    """A word on every basket"""
    month: Literal["august", "september"] | None = None
    """When to pick"""
    book: Path | None = field(default=None, metadata={"metavar": "FILE"})
    """Where the harvest is written down"""
    fail: str = ""
    """Raise the error of this name (SIGINT: as a terminal would)"""
    json: bool = False
    """Print JSON for machines"""

    def __post_init__(self) -> None:
        if self.apples < 0:
            raise ConfigError(f"--apples is {self.apples}; choose 0 or more")


def run(config: Config) -> int:
    if config.fail == "SIGINT":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
        signal.raise_signal(signal.SIGINT)
    if config.fail:
        raise ERRORS[config.fail]("the ladder broke")
    print_json({"picker": config.picker, "apples": config.apples})
    return 0
