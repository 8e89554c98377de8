"""Profiles and step logs on disk, and the fleet that a profile makes: its engine's blocks, its context, its step times."""

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config import EngineConfig
from penstock.core.features import StepTime
from penstock.cost.measured import MeasuredCost
from penstock.cost.profile import MAX_PROFILE_BYTES, Profile, read_profile
from penstock.engine.step_log import StepFile
from penstock.errors import ConfigError
from penstock.measure.this_machine import machine_facts
from penstock.sim.simulation import Fleet
from penstock.sizing import Sizing

PACKAGES = ("penstock", "torch", "numpy")


class Measuring(NamedTuple):
    """An engine whose steps are logged."""

    model: str
    config: EngineConfig
    sizing: Sizing
    vocab_size: int
    depth: int = 1

    def facts(self) -> dict[str, Any]:
        """What a profile must know of where its steps come from."""
        config = asdict(self.config)
        config["model"]["model"] = self.model  # a name, not somebody's path
        return {
            "model": self.model,
            "vocab_size": self.vocab_size,
            "depth": self.depth,
            "sizing": asdict(self.sizing),
            "machine": machine_facts(),
            "versions": {"python": platform.python_version()} | _versions(),
            "config": config,
        }


def step_writer(path: Path | None, measuring: Measuring) -> Callable[[StepTime], None] | None:
    """Where an engine's steps are written; None if not asked for."""
    return None if path is None else StepFile(path, measuring.facts()).write


def open_profile(path: Path) -> Profile:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PROFILE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; make a profile with penstock profile") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no profile; make one with penstock profile") from error
    return read_profile(text, str(path))


def sizing_of(profile: Profile, config: EngineConfig) -> Sizing:
    """The measured engine's, but for the blocks and the context that are asked for."""
    try:
        sizing = Sizing(**profile.sizing)
    except TypeError as error:
        raise ConfigError("the profile has no sizing; make it again with penstock profile") from error
    if config.cache.block_size != sizing.block_size:
        raise ConfigError(
            f"the profile was measured with blocks of {sizing.block_size} tokens; leave --block-size out, or measure again"
        )
    return replace(
        sizing,
        num_blocks=config.cache.num_blocks or sizing.num_blocks,
        num_kept_blocks=None if config.cache.num_blocks else sizing.num_kept_blocks,
        max_context=min(config.model.max_context or sizing.max_context, sizing.max_context),
    )


def fleet_of(profile: Profile, config: EngineConfig, **rest: Any) -> Fleet:
    """The engine that was measured, in virtual time."""
    return Fleet(config, sizing_of(profile, config), MeasuredCost(profile.fitted), depth=profile.depth, **rest)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
