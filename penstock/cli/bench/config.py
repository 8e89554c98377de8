"""The flags of `penstock bench`."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import check, leaf, setting
from penstock.metrics.summary import Slo
from penstock.tools.workload.asked import Asked

DEFAULT_USERS = 8
TARGETS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}
UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """When requests come."""

    concurrency: int | None = leaf(None, 1, 1_000_000)
    """Closed loop: this many users, each asking again once answered (8 where neither rate nor trace is given)"""
    sweep: str = ""
    """Numbers of users to measure one after another, with commas between: 1,2,4,8"""
    rate: float | None = None
    """Open loop: requests a second, however the server does; where a search for the knee begins"""
    ramp_to: float | None = setting(None)
    """The rate grows, or falls, evenly to this one"""
    num_requests: int | None = leaf(None, 1, 1_000_000)
    """How many to send (default: 100, or all of a trace); with --turns, how many conversations"""
    duration_s: float | None = setting(None, above=0, most=1e6, unit="seconds")
    """Send nothing after this many seconds; of a search for the knee, how long a trial takes (30)"""
    warm_up: int = setting(8, 0, 100_000)
    """Requests sent before, and not counted"""
    repeats: int = leaf(1, 1, 1_000_000)
    """Runs, each with words of its own; two or more give confidence intervals"""
    timeout_s: float = setting(600.0, above=0, most=1e6, unit="seconds")
    """Seconds after which a request counts as failed"""
    stop_saturated: bool = setting(True)
    """End a run whose queue grows without end, or whose server is gone"""

    def __post_init__(self) -> None:
        check(self)
        if self.sweep and (self.concurrency is not None or self.rate is not None or self.ramp_to is not None):
            raise ConfigError("--sweep names the users itself; leave --concurrency, --rate and ramp-to")
        if self.ramp_to is not None and self.rate is None:
            raise ConfigError("ramp-to needs --rate to begin from")
        if self.concurrency is not None and self.rate is not None:
            raise ConfigError("--concurrency and --rate exclude each other: users wait for answers, a rate does not")


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """Replay of a trace."""

    trace: Path | None = None
    """Send what a file recorded: Mooncake jsonl, Azure csv, BurstGPT csv, or a recording of `penstock serve`"""
    trace_speed: float = setting(1.0)
    """Times the rate of the trace"""
    trace_from_s: float = setting(0.0)
    """Seconds of the trace to skip"""
    trace_to_s: float | None = setting(None)
    """Second of the trace to end at"""


@dataclass(frozen=True, slots=True)
class PromptLengths(Asked):
    """What is asked."""

    num_prefixes: int = 1
    """How many common beginnings there are"""
    nonce: str = setting("")
    """Words are drawn from it; by default a new one every time, so that no cache knows them"""


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """What counts as good."""

    slo: str = "ttft<500ms,tpot<50ms"
    """Targets of a good request: ttft, tpot and e2e, in ms or s"""
    find_knee: bool = False
    """Search the highest rate at which the targets hold, by bisection"""
    attainment: float = setting(0.95, above=0, most=1)
    """Share of requests that must meet the targets for a rate to hold"""

    def __post_init__(self) -> None:
        check(self)
        parse_slo(self.slo)


@dataclass(frozen=True, slots=True)
class Config:
    """Load any OpenAI-compatible server and tell how it did.

    Latencies count from when a request was due, prompts are new to every cache, lengths are checked against the server's own
    count, failures stand apart; and where the figures are not the server's, it says so instead.
    """

    url: str = field(default="http://127.0.0.1:8000", metadata={"positional": True})
    """Address of the server"""
    model: str = ""
    """Model to ask (default: the first it lists)"""
    endpoint: Literal["chat", "completions"] = setting("chat")
    """Which of its routes to use"""
    api_key: str = ""
    """Key the server asks for (default: PENSTOCK_API_KEY or OPENAI_API_KEY)"""
    verify_tls: bool = setting(True)
    """Check the server's certificate"""
    json: Path | None = None
    """Write everything as JSON to this file; - is standard output"""
    rows: bool = setting(False)
    """Put every request into the JSON, too"""
    html: Path | None = None
    """Write a page with plots"""
    load: BenchLoad = field(default_factory=BenchLoad)
    recording: ReplayedTrace = field(default_factory=ReplayedTrace)
    words: PromptLengths = field(default_factory=PromptLengths)
    target: BenchTarget = field(default_factory=BenchTarget)

    def __post_init__(self) -> None:
        load = self.load
        if self.recording.trace is not None and (load.concurrency is not None or load.rate is not None):
            raise ConfigError(
                "--trace has times of its own; leave --rate and --concurrency, or scale it with trace-speed"
            )
        if self.recording.trace is not None and self.words.turns > 1:
            raise ConfigError("--trace has requests of its own; leave --turns")
        if load.ramp_to is not None and self.words.variation != 1.0:
            raise ConfigError("ramp-to has poisson arrivals; leave --arrivals and --burstiness")
        if self.words.turns > 1 and self.endpoint != "chat":
            raise ConfigError("--turns needs endpoint=chat: a completion has no history")
        if self.target.find_knee and (self.recording.trace is not None or load.concurrency is not None or load.ramp_to):
            raise ConfigError("--find-knee searches a rate; leave --trace, --concurrency and ramp-to")
        if self.target.find_knee and load.repeats > 1:
            raise ConfigError("--find-knee tries many rates once; repeat one of them with --rate and --repeats")

    @property
    def num_users(self) -> int | None:
        """None where requests have times of their own."""
        load = self.load
        if load.rate is not None or self.recording.trace is not None or self.target.find_knee:
            return None
        return load.concurrency or DEFAULT_USERS


def parse_slo(text: str) -> Slo:
    """Read `ttft<500ms,tpot<0.05s`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = (one.strip() for one in part.lower().partition("<"))
        unit = "ms" if value.endswith("ms") else "s"
        try:
            seconds = float(value.removesuffix(unit)) * UNITS[unit]
        except ValueError:
            seconds = math.nan
        if not sign or name not in TARGETS or not (value.endswith(unit) and seconds > 0.0) or TARGETS[name] in found:
            raise ConfigError(
                f"cannot read {part.strip()!r} in --slo; write ttft<500ms,tpot<50ms,e2e<10s or some of these"
            )
        found[TARGETS[name]] = seconds
    return Slo(**found)
