"""`penstock simulate`: serve an imagined load on imagined hardware with the engine's own scheduler, and tell how it went.

Puts the parts together and lays out the answer; it computes nothing itself.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.cli.show import print_json, print_table, printable
from penstock.cli.this_machine import find_hardware
from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.cost.layout import Layout
from penstock.cost.memory import kv_fraction, weight_bytes, workspace_bytes
from penstock.cost.precision import KvFormat, Precision, WeightFormat, precision_of
from penstock.cost.roofline import Overhead, roofline
from penstock.errors import ConfigError, ModelFileError
from penstock.metrics.summary import Percentiles, Slo, Summary
from penstock.models import catalog, registry
from penstock.models.spec import ModelSpec
from penstock.router.policy import POLICIES
from penstock.sim.simulation import Fleet, ReplicaReport, Result, simulate
from penstock.sizing import GIB, Memory, size_engine
from penstock.workload import lengths
from penstock.workload.arrivals import Arrivals, AtOnce, Constant, Gamma, Poisson
from penstock.workload.workload import Recipe, SharedPrefix, Workload

STRATEGIES: tuple[Literal["static", "dynamic", "continuous"], ...] = ("static", "dynamic", "continuous")
CHAT_SLO = Slo(ttft_s=0.5, tpot_s=0.05)
MAX_CONFIG_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Machines:
    """What computes."""

    hardware: str = "h100-sxm"
    """Device of a replica, by name: h100-sxm, a100-80, l4, epyc-9654, ..., or this-machine, measured when first named"""
    profile: Path | None = None
    """Step times, model and cache as penstock profile measured them, instead of a device and a model by name"""
    replicas: int = 1
    """How many replicas serve"""
    tensor: int = 1
    """Devices that share every matrix of a replica"""
    pipeline: int = 1
    """Stages that share the layers of a replica"""
    expert: int = 1
    """Devices that experts are dealt out to; more than --tensor spans replicas"""
    weights: WeightFormat = "bf16"
    """How weights are held"""
    overlap: bool = False
    """The host schedules the next step while the device computes"""
    policy: Literal["least-pending", "round-robin"] = "least-pending"
    """Which replica gets a request"""

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 10_000:
            raise ConfigError(f"--replicas is {self.replicas}; choose 1 to 10000")

    @property
    def layout(self) -> Layout:
        return Layout(self.tensor, self.pipeline, self.replicas, self.expert)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of them."""

    rate: float = 8.0
    """Requests a second, over the whole fleet; 0 for all at once"""
    burstiness: float = 1.0
    """Spread of the gaps between arrivals: 0 even, 1 as of independent users, more in bursts"""
    num_requests: int = 2000
    """How many requests come"""
    prompts: str = "sharegpt-prompts"
    """Prompt lengths in tokens: 512, 100-1024, lognormal:MEDIAN:SIGMA[:LOW-HIGH] or sharegpt-prompts"""
    answers: str = "sharegpt-answers"
    """Answer lengths in tokens, written likewise, or sharegpt-answers"""
    shared_prefix: int = 0
    """Tokens that all prompts begin with, before those of their own"""
    seed: int = 0
    """The same seed gives the same load"""

    def recipe(self, vocab_size: int) -> Recipe:
        return Recipe(
            arrivals=self._arrivals(),
            prompts=lengths.parse(self.prompts),
            answers=lengths.parse(self.answers),
            num_requests=self.num_requests,
            prefix=SharedPrefix(self.shared_prefix) if self.shared_prefix else None,
            vocab_size=vocab_size,
        )

    def _arrivals(self) -> Arrivals:
        if self.rate == 0.0:
            return AtOnce()
        if self.burstiness == 0.0:
            return Constant(self.rate)
        return Poisson(self.rate) if self.burstiness == 1.0 else Gamma(self.rate, self.burstiness)


@dataclass(frozen=True, slots=True)
class Config:
    """Serve an imagined load on imagined hardware and tell how it went.

    The engine's own scheduler runs under a virtual clock; a roofline model says how long each step takes. Nothing is
    downloaded and nothing is computed.
    """

    model: str = "llama-3.1-8b"
    """A known model (llama-3.1-8b, qwen3-30b-a3b, ...) or the path of a config.json"""
    max_context: int | None = None
    """Longest prompt plus answer, in tokens (default: the model's own)"""
    compare: bool = False
    """Run static, dynamic and continuous batching on the same load, side by side"""
    json: bool = False
    """Print JSON for machines"""
    machines: Machines = field(default_factory=Machines)
    load: Load = field(default_factory=Load)
    slo: Slo = field(default_factory=Slo)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    @property
    def target(self) -> Slo:
        """What counts as good: as asked, or as chat is usually held to."""
        return CHAT_SLO if self.slo == Slo() else self.slo

    @property
    def kv_format(self) -> KvFormat:
        return "bf16" if self.cache.kv == "auto" else self.cache.kv


class Basis(NamedTuple):
    """Where memory and step times come from."""

    vocab_size: int
    make_fleet: Callable[[Config], Fleet]
    rows: Callable[[Fleet], list[tuple[str, str]]]
    """For the heading, once simulated."""
    data: dict[str, Any]


def run(config: Config) -> int:
    path = config.machines.profile
    basis = roofline_basis(config) if path is None else profile_basis(config, path)
    workload = config.load.recipe(basis.vocab_size).make(config.load.seed)
    chosen = STRATEGIES if config.compare else (config.scheduler.batching,)
    fleets = {
        strategy: basis.make_fleet(replace(config, scheduler=replace(config.scheduler, batching=strategy)))
        for strategy in chosen
    }
    results: dict[str, Result] = {}
    for strategy, fleet in fleets.items():
        with _status(f"simulating {strategy} batching of {len(workload):,} requests"):
            results[strategy] = simulate(fleet, workload, config.target)
    fleet = next(iter(fleets.values()))
    if config.json:
        print_json(as_data(config, basis, fleet, workload, results))
    else:
        _print_heading(config, basis, fleet, workload)
        if config.compare:
            _print_comparison(results)
        else:
            _print_result(next(iter(results.values())))
    return 0


def roofline_basis(config: Config) -> Basis:
    """A known model on a known device."""
    spec = read_spec(config.model)
    machines, device = config.machines, find_hardware(config.machines.hardware)
    precision = precision_of(machines.weights, config.kv_format, device.achievable)
    reach = "measured" if device.measured else "assumed"
    rate = device.achievable.bandwidth_bytes_per_s / 1e9

    def rows(fleet: Fleet) -> list[tuple[str, str]]:
        gib = fleet.sizing.weight_bytes / GIB
        return [
            ("model", f"{config.model}, {machines.weights} weights of {gib:.1f} GiB"),
            ("fleet", f"{machines.replicas} x {device.name} of {device.memory_bytes / GIB:.0f} GiB, {machines.policy}"),
            ("step times", f"roofline at {reach} {rate:,.0f} GB/s; not calibrated on a live engine"),
        ]

    data = {"from": "roofline", "hardware": asdict(device), "achievable": asdict(device.achievable)}
    return Basis(spec.vocab_size, lambda asked: make_fleet(asked, spec, precision), rows, data)


def profile_basis(config: Config, path: Path) -> Basis:
    """An engine as it was measured."""
    from penstock.cli.profiles import fleet_of, open_profile  # numpy: not needed to say what the flags are
    from penstock.cost.measured import Measured

    profile, machines = open_profile(path), config.machines

    def make(asked: Config) -> Fleet:
        engine = EngineConfig(ModelConfig(profile.model, max_context=asked.max_context), asked.cache, asked.scheduler)
        return fleet_of(profile, engine, num_replicas=machines.replicas, policy=POLICIES[machines.policy])

    def rows(fleet: Fleet) -> list[tuple[str, str]]:
        error = profile.fitted.errors["all"]
        told = f"measured by {profile.measuring.get('from')}, {100 * error.median:.1f} % off on steps not fitted"
        processor = profile.machine.get("processor")
        found = [
            ("model", profile.model),
            ("fleet", f"{machines.replicas} x {processor}, {machines.policy}"),
            ("step times", told),
        ]
        cost = fleet.cost
        if isinstance(cost, Measured) and cost.num_outside:
            share = 100.0 * cost.num_outside / cost.num_asked
            beyond = ", ".join(f"{name} {most:,}" for name, most in cost.furthest.items())
            found.append(("warning", f"{share:.1f} % of steps lie beyond what was measured ({beyond}): extrapolated"))
        return found

    return Basis(profile.vocab_size, make, rows, {"from": "profile", "profile": json.loads(profile.to_json())})


def read_spec(model: str) -> ModelSpec:
    """The spec of a known model, or of the config.json at a path."""
    if not model.endswith(".json"):
        spec = catalog.find(model)
    else:
        try:
            with Path(model).open("rb") as file:
                config = json.loads(file.read(MAX_CONFIG_BYTES))
        except OSError as error:
            raise ModelFileError(f"cannot read {model}: {error.strerror}; give the path of a config.json") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{model} is not JSON; give the path of a config.json") from error
        if not isinstance(config, Mapping):
            raise ModelFileError(f"{model} holds no JSON object; give the path of a config.json")
        spec = registry.read_config(config).spec
    if not spec.generates:
        raise ConfigError(f"{model} makes embeddings, no text; choose a model that generates")
    return spec


def make_fleet(config: Config, spec: ModelSpec, precision: Precision) -> Fleet:
    machines = config.machines
    device, layout = find_hardware(machines.hardware), machines.layout
    layout.check(spec)
    engine = EngineConfig(ModelConfig(config.model, max_context=config.max_context), config.cache, config.scheduler)
    memory = Memory(
        free_bytes=device.memory_bytes,
        weight_bytes=weight_bytes(spec, precision, layout),
        workspace_bytes=workspace_bytes(
            spec, config.scheduler.max_batch_tokens, config.scheduler.max_sequences, layout
        ),
        bytes_per_kv_value=precision.kv_bytes * kv_fraction(spec, layout),
    )
    return Fleet(
        config=engine,
        sizing=size_engine(engine, spec, memory),
        cost=roofline(spec, device, precision, Overhead(overlaps=machines.overlap), layout),
        num_replicas=machines.replicas,
        policy=partial(POLICIES[machines.policy], config.load.seed),
        depth=2 if machines.overlap else 1,
    )


def as_data(
    config: Config, basis: Basis, fleet: Fleet, workload: Workload, results: Mapping[str, Result]
) -> dict[str, Any]:
    """Everything that was asked and found, as JSON holds it."""
    asked = asdict(config)
    path = config.machines.profile
    asked["machines"]["profile"] = None if path is None else str(path)
    return {
        "asked": asked,
        "sizing": asdict(fleet.sizing),
        "step_times": basis.data,
        "workload": {
            "num_requests": len(workload),
            "num_prompt_tokens": workload.num_prompt_tokens,
            "num_output_tokens": workload.num_output_tokens,
            "span_s": workload.span_s,
        },
        "results": {
            name: {"summary": asdict(result.summary), "replicas": [_replica_data(one) for one in result.replicas]}
            for name, result in results.items()
        },
    }


def _replica_data(replica: ReplicaReport) -> dict[str, Any]:
    return {**asdict(replica), "history": [sample._asdict() for sample in replica.history]}


def _status(text: str) -> Any:
    """A spinner while somebody watches."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def _print_heading(config: Config, basis: Basis, fleet: Fleet, workload: Workload) -> None:
    sizing = fleet.sizing
    rows = [
        *basis.rows(fleet),
        (
            "KV cache",
            f"{sizing.num_cached_tokens:,} tokens a replica in {sizing.num_blocks:,} blocks of {sizing.block_size}, "
            f"{sizing.kv_bytes / GIB:.1f} GiB in {config.kv_format}",
        ),
        (
            "load",
            f"{len(workload):,} requests in {workload.span_s:,.1f} s, {workload.num_prompt_tokens:,} prompt tokens, "
            f"{workload.num_output_tokens:,} to generate",
        ),
        ("goodput", f"of requests with {_targets(config.target)}"),
    ]
    for name, text in rows:
        print(f"{name:12}{printable(text)}")
    print()


def _targets(slo: Slo) -> str:
    asked = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s, "E2E": slo.e2e_s}
    return ", ".join(f"{name} up to {1e3 * value:,.0f} ms" for name, value in asked.items() if value is not None)


def _print_result(result: Result) -> None:
    summary = result.summary
    latencies = [(name, *_milliseconds(values)) for name, values in _latencies(summary).items()]
    print_table(("ms", "mean", "p50", "p90", "p95", "p99", "max"), latencies)
    print()
    print_table(("outcome", ""), list(_outcome_rows(result).items()))
    print()
    columns = ("replica", "requests", "steps", "busy %", "running", "waiting", "KV %", "KV max %", "preemptions")
    print_table(columns, [(number, *_replica_row(one)) for number, one in enumerate(result.replicas)])


def _print_comparison(results: Mapping[str, Result]) -> None:
    """One column a strategy, one row a figure."""
    columns = []
    for result in results.values():
        column: dict[str, object] = {}
        for name, values in _latencies(result.summary).items():
            if name != "ITL":
                column[f"{name} p50, ms"] = values.p50 * 1e3
                column[f"{name} p99, ms"] = values.p99 * 1e3
        columns.append(column | _outcome_rows(result))
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, 0) for column in columns)) for name in names]
    print_table(("batching", *results), rows)


def _latencies(summary: Summary) -> dict[str, Percentiles]:
    return {"TTFT": summary.ttft, "TPOT": summary.tpot, "ITL": summary.itl, "E2E": summary.e2e}


def _milliseconds(values: Percentiles) -> list[float]:
    return [1e3 * value for value in (values.mean, values.p50, values.p90, values.p95, values.p99, values.max)]


def _outcome_rows(result: Result) -> dict[str, object]:
    summary = result.summary
    cached = summary.num_cached_tokens / summary.num_prompt_tokens if summary.num_prompt_tokens else 0.0
    rows: dict[str, object] = {
        "duration, s": summary.duration_s,
        "requests/s": summary.requests_per_s,
        "output tokens/s": summary.output_tokens_per_s,
    }
    rows["goodput, requests/s"] = summary.good_requests_per_s
    rows["goodput, %"] = 100.0 * summary.good_fraction
    others = {name: count for name, count in summary.outcomes.items() if count and name not in ("stop", "length")}
    return rows | {
        "complete": summary.num_successes,
        **others,
        "prompt tokens cached, %": 100.0 * cached,
        "KV used at most, %": 100.0 * max(one.max_kv_usage_fraction for one in result.replicas),
        "preemptions": result.num_preemptions,
        "steps": result.num_steps,
    }


def _replica_row(replica: ReplicaReport) -> tuple[object, ...]:
    return (
        replica.num_requests,
        replica.num_steps,
        100.0 * replica.busy_fraction,
        replica.mean_running,
        replica.mean_waiting,
        100.0 * replica.mean_kv_usage_fraction,
        100.0 * replica.max_kv_usage_fraction,
        replica.num_preemptions,
    )
