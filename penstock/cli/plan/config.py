"""The flags of `penstock plan`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import Checked, setting
from penstock.tools.planner.money import Assumptions
from penstock.tools.sim.replica.adapters import AskedAdapters
from penstock.tools.workload.asked import Asked

MEASURED = "this-machine"
KindName = Literal["chat", "rag", "agent", "code", "summary", "reasoning"]


@dataclass(frozen=True, slots=True)
class ExpectedLoad(Asked):
    """What is asked. Lengths and the shared prefix are the workload's own where they are not given."""

    prompts: str = ""
    """Prompt tokens instead of the workload's: 512, 100-1024, lognormal:MEDIAN:SIGMA[:LOW-HIGH], file:PATH"""
    answers: str = ""
    """Answer tokens instead of the workload's, written likewise"""
    workload: KindName = setting("chat")
    """A usual way of using a model, which gives lengths of prompts and answers"""
    rate: float = 8.0
    """Requests a second, over the whole fleet, turns of conversations included"""
    users: int | None = None
    """People instead of a rate: each asks, waits for the answer as long as the SLO allows, thinks for --think-s, asks again"""
    trace: Path | None = None
    """Recorded requests instead: Mooncake jsonl, Azure csv, BurstGPT csv, or a recording of `penstock serve`"""


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """When it is good enough."""

    slo: str = "ttft<500ms,tpot<50ms"
    """Targets of a good request: ttft, tpot and e2e, in ms or s"""
    attainment: float = setting(0.95)
    """Share of requests that must meet them all"""


@dataclass(frozen=True, slots=True)
class Space(Checked):
    """What may be considered."""

    hardware: str = "h100-sxm"
    """Devices to choose from, with commas between: h100,h200,l40s, or this-machine"""
    price: tuple[str, ...] = ()
    """Dollars an hour of a device: h100=2.5, this-machine=0.1 (otherwise list prices, where there are some)"""
    purchase: Literal["on-demand", "reserved", "spot"] = setting("on-demand")
    """How hours are bought: list prices as they are, for a year, or of devices that may be taken back; given prices stay"""
    regions: str = setting("")
    """Regions with their shares of the load, planned on paper: eu=.5,us=.5, or pools of devices: eu@h100=.5,us@l40s=.5"""
    weights: str = "bf16,fp8"
    """Number formats of weights to consider: bf16, fp16, fp32, fp8, int8, int4"""
    kv: str = "bf16,fp8"
    """Number formats of cached keys and values to consider: bf16, fp16, fp32, fp8, int8"""
    max_devices: int = setting(8, 1, 1024)
    """Most devices that one replica may take"""
    max_context: int | None = None
    """Longest prompt plus answer, in tokens (default: the model's own)"""
    profile: Path | None = None
    """Step times and cache as penstock profile measured them here, instead of devices by name"""


@dataclass(frozen=True, slots=True)
class Config:
    """Plan what to buy for a model and a load, and how to launch it.

    Layouts, number formats and limits are searched on the simulator, which runs the engine's own scheduler. Nothing is
    downloaded: a model is a known name, a config.json, a directory or a GGUF file.
    """

    model: str = field(metadata={"positional": True})
    """A known model (llama-3.1-8b, deepseek-v3, ...), a config.json, a model directory or a .gguf file"""
    json: bool = False
    """Print JSON for machines"""
    emit: Path | None = None
    """Write a config file for serve and simulate here (plan.toml), and the plan beside it (plan.json) for plan verify"""
    load: ExpectedLoad = field(default_factory=ExpectedLoad)
    asked: AskedAdapters = field(default_factory=AskedAdapters)
    goal: PlanGoal = field(default_factory=PlanGoal)
    space: Space = field(default_factory=Space)
    money: Assumptions = field(default_factory=Assumptions)

    def __post_init__(self) -> None:
        if self.emit is not None and self.emit.suffix == ".json":
            raise ConfigError(
                f"--emit {self.emit} would overwrite itself: the plan goes to a .json beside it; name a .toml file"
            )
