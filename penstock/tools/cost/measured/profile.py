"""A profile: a measured cost and where it comes from, as JSON that another day and another command can read.

It holds names, numbers and versions; no text, no path but the model's own name, nothing that runs when it is read.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.core.features import COLUMNS, STEPS_VERSION, Features, StepTime
from penstock.tools.cost.measured.all_reduce import AllReduce, read_all_reduce
from penstock.tools.cost.measured.fit import CostRamp, Errors
from penstock.tools.cost.measured.ramps import VALUES, Fitted
from penstock.tools.cost.measured.slowdown import MAX_FACTOR, MIN_FACTOR, MIN_SLOWDOWN_S, Slowdown
from penstock.tools.cost.measured.warmth import Cooling

VERSION = 4
MAX_PROFILE_BYTES = 1 << 24
RAMPS = ("device", "host", "cold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    model: str
    vocab_size: int
    depth: int
    """Steps the engine launches before it awaits the oldest."""
    sizing: Mapping[str, Any]
    """Of the engine that was measured: its blocks, its context."""
    fitted: Fitted
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What tells this machine from another."""
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the engine was asked."""
    measuring: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured: when, how long, how disturbed."""
    back_test: Mapping[str, Any] = field(default_factory=dict)
    """A workload that was not fitted, predicted and measured."""
    shape: Mapping[str, int] = field(default_factory=dict)
    """Of the model, what decides how much ranks exchange: `num_layers`, `hidden_size`."""
    all_reduce: tuple[AllReduce, ...] = ()
    """Between two ranks of the machine; the way that they take first."""

    def to_json(self) -> str:
        data = {"penstock_profile": VERSION, **asdict(self)}
        data["all_reduce"] = [each.as_data() for each in self.all_reduce]
        data["fitted"] |= {
            **{name: [_written(ramp) for ramp in getattr(self.fitted, name)] for name in RAMPS},
            "most": self.fitted.most._asdict(),
            "slowdowns": [[slowdown.seconds, slowdown.factor] for slowdown in self.fitted.slowdowns],
        }
        return json.dumps(data, indent=1, allow_nan=False) + "\n"


def read_profile(text: str, name: str) -> Profile:
    """A profile out of a file's text; `name` is the file's, for the error."""
    try:
        data = json.loads(text)
        version = data.pop("penstock_profile")
        if version != VERSION:
            raise ConfigError(f"{name} is a profile of version {version}; this program reads {VERSION}: make it again")
        fitted = data.pop("fitted")
        all_reduce = tuple(read_all_reduce(each) for each in data.pop("all_reduce", ()))
        profile = Profile(
            **data,
            all_reduce=all_reduce,
            fitted=Fitted(
                **{name: tuple(_ramp(row) for row in fitted[name]) for name in RAMPS},
                cooling=_cooling(fitted["cooling"]),
                overlaps=bool(fitted["overlaps"]),
                most=Features(**{key: int(value) for key, value in fitted["most"].items()}),
                num_steps=int(fitted["num_steps"]),
                errors={kind: Errors(**each) for kind, each in fitted["errors"].items()},
                slowdowns=tuple(_slowdown(row) for row in fitted["slowdowns"]),
            ),
        )
        counts = (profile.vocab_size, profile.depth, profile.sizing["num_blocks"], profile.sizing["block_size"])
        if not all(type(count) is int and count >= 1 for count in counts) or profile.depth > 2 or not fitted["device"]:
            raise ValueError("a number is out of range")
        return profile
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{name} is no profile, or a damaged one; make one with penstock profile") from error


def read_steps(text: str, name: str) -> tuple[dict[str, Any], list[StepTime]]:
    """Header and steps of a step log. A last line cut short, as of a log that is being written, is left out."""
    lines = text.split("\n")
    try:
        header = json.loads(lines[0])
        if header["penstock_steps"] != STEPS_VERSION or tuple(header["columns"]) != COLUMNS:
            raise ConfigError(f"{name} is a step log of another version; this program reads {STEPS_VERSION}")
        steps = [_step(json.loads(line)) for line in lines[1:-1]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{name} is no step log, or a damaged one; make one with serve --step-log") from error
    return header, steps


def _step(row: list[Any]) -> StepTime:
    start_s, device_s, host_s, is_busy, rest_s, *features = row
    numbers = (start_s, device_s, host_s, rest_s)
    if not all(0.0 <= float(number) < math.inf for number in numbers) or not all(type(n) is int for n in features):
        raise ValueError("a number is out of range")
    return StepTime(float(start_s), float(device_s), float(host_s), bool(is_busy), float(rest_s), Features(*features))


def _written(ramp: CostRamp) -> list[str | float | None]:
    return [ramp.feature, ramp.low, None if math.isinf(ramp.width) else ramp.width, ramp.seconds]


def _cooling(row: list[Any] | None) -> Cooling | None:
    if row is None:
        return None
    cooling = Cooling(*map(float, row))
    if not (0.0 < cooling.seconds < math.inf and 0.0 <= cooling.lost_fraction <= 1.0):
        raise ValueError(f"{cooling} cannot be")
    return cooling


def _slowdown(row: list[Any]) -> Slowdown:
    slowdown = Slowdown(*map(float, row))
    if not (MIN_SLOWDOWN_S <= slowdown.seconds < math.inf and MIN_FACTOR <= slowdown.factor <= MAX_FACTOR):
        raise ValueError(f"{slowdown} cannot be")
    return slowdown


def _ramp(row: list[Any]) -> CostRamp:
    feature, low, width, seconds = row
    ramp = CostRamp(str(feature), float(low), math.inf if width is None else float(width), float(seconds))
    if ramp.feature not in VALUES or not (
        0.0 <= ramp.low < math.inf and ramp.width > 0.0 and 0.0 <= ramp.seconds < 60.0
    ):
        raise ValueError(f"{ramp} cannot be")
    return ramp
