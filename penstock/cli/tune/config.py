"""The flags of `penstock tune`."""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import ModelConfig
from penstock.errors import ConfigError
from penstock.fields import check, leaf
from penstock.tools.workload.asked import Asked


@dataclass(frozen=True, slots=True)
class TuneLoad(Asked):
    """What is asked. Without a rate or a trace the load is what strains the default."""

    rate: float | None = leaf(None, above=0, most=1e6)
    """Requests a second to serve"""
    trace: Path | None = None
    """Recorded requests instead: a recording of `penstock serve --record`, Mooncake jsonl, Azure csv or BurstGPT csv"""
    num_prefixes: int = 1
    """How many common beginnings there are"""

    def __post_init__(self) -> None:
        Asked.__post_init__(self)
        if self.rate is not None and self.trace is not None:
            raise ConfigError("--trace has times of its own; leave --rate")
        if self.turns != 1:
            raise ConfigError("tune measures single turns; give conversations with --trace, recorded by serve --record")


@dataclass(frozen=True, slots=True)
class Config:
    """Find the settings of serve that keep an SLO for most requests, on this machine.

    Hundreds of settings are simulated on the engine's own scheduler with step times measured here; the few best are served
    and measured by turns against the default until chance is excluded. What wins is kept, and serve finds it by itself; the
    default is kept where nothing is better beyond chance.
    """

    slo: str = "ttft<500ms,tpot<50ms"
    """Targets of a good request: ttft, tpot and e2e, in ms or s"""
    minutes: float = leaf(5.0, 0.5, 600)
    """How long it may take"""
    profile: Path | None = None
    """Step times as penstock profile measured them, instead of measuring now; an old profile may be of another time"""
    lossy: bool = False
    """Try settings that change answers a little, too: 8-bit keys and values, on a GPU 8-bit weights"""
    kernels: bool = False
    """Tune the tiles of this GPU's kernels for the model's shapes instead, under sustained load"""
    out: Path | None = None
    """File to write (default: where serve finds it by itself, by model and machine)"""
    json: bool = False
    """Print the evidence as JSON"""
    model: ModelConfig = field(default_factory=ModelConfig)
    load: TuneLoad = field(default_factory=TuneLoad)

    def __post_init__(self) -> None:
        check(self)
        if self.out is not None and self.out.suffix != ".toml":
            raise ConfigError(f"--out is {self.out}; name a .toml file: the evidence goes to a .json beside it")
