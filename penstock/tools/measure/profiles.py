"""Profiles and step logs on disk, and the fleet that a profile makes: its engine's blocks, its context, its step times."""

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config import EngineConfig
from penstock.console.files import read_text
from penstock.errors import ConfigError
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.engine.step_log import StepFile
from penstock.runtime.sizing import Sizing
from penstock.tools.cost.layout import SINGLE, Layout, measured_traffic
from penstock.tools.cost.measured.profile import MAX_PROFILE_BYTES, Profile, read_profile
from penstock.tools.cost.measured.ramps import MeasuredCost, RankedCost
from penstock.tools.measure.environment import version_of
from penstock.tools.measure.this_machine import machine_facts
from penstock.tools.sim.simulation import Fleet

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
            "versions": versions(),
            "config": config,
        }


def step_writer(path: Path | None, measuring: Measuring) -> Callable[[StepTime], None] | None:
    """Where an engine's steps are written; None if not asked for."""
    return None if path is None else StepFile(path, measuring.facts()).write


def open_profile(path: Path) -> Profile:
    text = read_text(path, "make a profile with penstock profile", MAX_PROFILE_BYTES)
    return read_profile(text, str(path))


def measured_sizing(profile: Profile) -> Sizing:
    """What the engine had that was measured. Groups of caches are lists in a file."""
    try:
        values = dict(profile.sizing)
        if "groups" in values:
            first, others, num_states = values["groups"]
            values["groups"] = CacheGroups(BlockGroup(*first), tuple(BlockGroup(*one) for one in others), num_states)
        return Sizing(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError("the profile has no sizing; make it again with penstock profile") from error


def sizing_of(profile: Profile, config: EngineConfig) -> Sizing:
    """The measured engine's, but for the blocks and the context that are asked for."""
    sizing = measured_sizing(profile)
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


def fleet_of(profile: Profile, config: EngineConfig, layout: Layout = SINGLE, **rest: Any) -> Fleet:
    """The engine that was measured, in virtual time, or the same cut over ranks."""
    return Fleet(config, sizing_of(profile, config), cost_of(profile, layout), depth=profile.depth, **rest)


def cost_of(profile: Profile, layout: Layout = SINGLE) -> MeasuredCost:
    """Raises ConfigError if the profile does not say what ranks of such a layout would take."""
    asked = {name: getattr(layout, name) for name in ("tensor", "pipeline", "expert")}
    had = {name: dict(profile.config.get("parallel", {})).get(name, 1) for name in asked}
    if asked == dict.fromkeys(asked, 1) or asked == had:
        return MeasuredCost(profile.fitted)
    obstacle = "it is of other ranks" if max(had.values()) > 1 else _ranks_obstacle(profile, layout)
    if obstacle is not None:
        flags = " ".join(f"--{name} {count}" for name, count in asked.items() if count > 1)
        raise ConfigError(
            f"this profile does not tell what {layout} takes: {obstacle}; measure penstock profile {flags}"
        )
    link = profile.all_reduce[0].link("socket")
    return RankedCost(profile.fitted, measured_traffic(profile.shape, layout, link))


def _ranks_obstacle(profile: Profile, layout: Layout) -> str | None:
    if profile.machine.get("gpus"):
        return "it is of one GPU"
    if not profile.all_reduce or {"num_layers", "hidden_size"} - profile.shape.keys():
        return "no all-reduce was measured with it"
    if layout.expert > 1:
        return "experts are not in it"
    most = int(profile.machine.get("num_processors", 1))
    return f"its machine has {most} processors" if layout.devices_per_copy > most else None


def versions() -> dict[str, str]:
    """Of what computes."""
    found = {"python": platform.python_version(), **{package: version_of(package) for package in PACKAGES}}
    return {package: version for package, version in found.items() if version}
