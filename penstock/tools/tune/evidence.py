"""What tuning found, as values: a config file that `serve` takes, with what was tried, won and lost, and when to tune again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.bench.report.interval import Interval
from penstock.tools.tune.setting import Setting, flags_in_words

VERSION = 1


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """A finalist: what was predicted of it, and what was measured, as shares of requests served in time."""

    changes: Mapping[str, Any]
    predicted: float | None
    measured: float | None
    gain: float
    half_width: float | None
    num_rounds: int

    @classmethod
    def of(cls, setting: Setting, predicted: float | None, measured: float | None, gain: Interval) -> "TriedSetting":
        return cls(setting.changes, predicted, measured, gain.mean, gain.half_width, gain.count)

    @property
    def words(self) -> str:
        width = "" if self.half_width is None else f" ± {100 * self.half_width:.1f}"
        return f"{100 * self.gain:+.1f}{width} % in {self.num_rounds} rounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """`machine` and `versions` are what it was found on; `load` and `slo` what for."""

    model: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    when: str
    slo: str
    load: str
    winner: TriedSetting | None
    """None where the default is kept."""
    default_good: float | None
    """Of its requests, those served in time as measured."""
    tried: Sequence[TriedSetting]
    num_simulated: int
    simulated_s: float
    measured_s: float
    shares: Mapping[str, float] = field(default_factory=dict)
    default_predicted: float | None = None
    tau: float | None = None
    """Agreement of the simulator's ranking with the measured one."""
    doubts: Sequence[str] = ()

    @property
    def gain_words(self) -> str:
        return "the default is best" if self.winner is None else f"{100 * self.winner.gain:+.0f} %"

    def to_json(self) -> str:
        return json.dumps({"penstock_tuned": VERSION, **asdict(self)}, indent=1, allow_nan=False, default=str) + "\n"

    def to_toml(self) -> str:
        """A config file: settings, and the evidence as comments."""
        changes = {} if self.winner is None else self.winner.changes
        lines = [f"# {self.model}, tuned {self.when} for {self.slo} under {self.load}"]
        if self.winner is None:
            lines.append("# No setting was better than the default beyond chance, so none is changed.")
        else:
            lines.append(f"# Requests served in time: {self.winner.words} against the default.")
        for name, value in changes.items():
            if name in self.shares:
                lines.append(f"# simulated without it: {-100 * self.shares[name]:+.1f} points")
            lines.append(f"{name.replace('_', '-')} = {json.dumps(value)}")
        lost = [one for one in self.tried if self.winner is None or one.changes != self.winner.changes]
        lines += [f"# lost: {flags_in_words(one.changes) or 'default'}: {one.words}" for one in lost]
        lines.append(f"# {self.num_simulated} settings were simulated in {self.simulated_s:.0f} s.")
        lines += [f"# doubt: {doubt}" for doubt in self.doubts]
        lines.append(f"# {AGAIN}")
        return "\n".join(lines) + "\n"


AGAIN = (
    "Tune again when the model, the machine, its driver or penstock changes, or prompts, answers or rate do by a third."
)


def read_tuned(text: str, name: str) -> Tuned:
    try:
        data = json.loads(text)
        if data.pop("penstock_tuned") != VERSION:
            raise ConfigError(f"{name} is of another version; tune again with penstock tune")
        data["winner"] = None if data["winner"] is None else TriedSetting(**data["winner"])
        data["tried"] = [TriedSetting(**one) for one in data["tried"]]
        return Tuned(**data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{name} does not say what tuning found; tune again with penstock tune") from error


def stale(tuned: Tuned, versions: Mapping[str, str]) -> str:
    """Why it should be tuned again; empty if it need not be."""
    changed = [name for name, version in versions.items() if tuned.versions.get(name, version) != version]
    return f"{changed[0]} is another version since" if changed else ""
