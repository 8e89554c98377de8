"""`penstock simulate`: serve an imagined load on imagined hardware with the engine's own scheduler, and tell how it went.

Puts the parts together and lays out the answer; it computes nothing itself.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.amounts import format_bytes
from penstock.cli.plan.model import describe
from penstock.cli.simulate import report
from penstock.cli.simulate.load import SimulatedLoad
from penstock.cli.simulate.techniques import Techniques
from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.console import config_file
from penstock.console.files import check_writable, write_file
from penstock.console.progress import StatusLine
from penstock.console.show import print_json
from penstock.errors import ConfigError
from penstock.fields import Checked, leaf, setting
from penstock.metrics.summary import Slo
from penstock.runtime.models.adapters import adapter_bytes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.sizing import Memory, batch_tokens, pace_of, size_engine
from penstock.service.config import RoutingPolicy
from penstock.service.router.policy import POLICIES
from penstock.tools.cost.hardware import Hardware
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.memory import kv_fraction, weight_bytes, workspace_bytes
from penstock.tools.cost.precision import KvFormat, Precision, WeightFormat, precision_of
from penstock.tools.cost.roofline import NO_OVERHEAD, Overhead, roofline
from penstock.tools.cost.unserved import unserved
from penstock.tools.measure.this_machine import find_hardware
from penstock.tools.sim.padding import PaddedCost
from penstock.tools.sim.queueing import QueueFigures, queue_figures
from penstock.tools.sim.replica.adapters import AskedAdapters, adapted
from penstock.tools.sim.simulation import Fleet, Result, simulate
from penstock.tools.sim.tracing import SimulationTracer
from penstock.tools.workload.workload import Workload

STRATEGIES: tuple[Literal["static", "dynamic", "continuous"], ...] = ("static", "dynamic", "continuous")
MEASURED_LINK = "measured between ranks of this machine"
TABLE_LINK = "from the device's figures"
CHAT_SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@dataclass(frozen=True, slots=True)
class Machines(Checked):
    """What computes."""

    hardware: str = "h100-sxm"
    """Device of a replica, by name: h100-sxm, a100-80, l4, epyc-9654, ..., or this-machine, measured when first named"""
    profile: Path | None = None
    """Step times, model and cache as penstock profile measured them, instead of a device and a model by name"""
    replicas: int = leaf(1, 1, 10_000)
    """How many replicas serve"""
    tensor: int = 1
    """Devices that share every matrix of a replica"""
    pipeline: int = 1
    """Stages that share the layers of a replica"""
    expert: int = 1
    """Devices that experts are dealt out to; more than --tensor spans replicas"""
    weights: WeightFormat = "bf16"
    """How weights are held"""
    overlap: bool = setting(True)
    """The host schedules the next step while the device computes, as the engine does on a GPU"""
    depth: Literal[1, 2] = setting(1)
    """Steps launched before the oldest is awaited; 2 as the engine on a GPU: a new request waits a step longer, and simulating
    takes several times as long"""
    textbook: bool = False
    """Step times by the vendor's peaks and without overheads, as textbooks count"""
    policy: RoutingPolicy = "least-pending"
    """Which replica gets a request"""
    max_pending: int | None = setting(None)
    """Requests a replica may have before it gets no more; with all full, requests are refused"""

    @property
    def layout(self) -> Layout:
        return Layout(self.tensor, self.pipeline, self.replicas, self.expert)


@dataclass(frozen=True, slots=True)
class Config:
    """Serve an imagined load on imagined hardware and tell how it went.

    The engine's own scheduler runs under a virtual clock; a roofline model says how long each step takes. Nothing is
    downloaded and nothing is computed.
    """

    files: tuple[Path, ...] = field(default=(), metadata={"positional": True, "metavar": "FILE"})
    """Config files of deployments to simulate side by side, with what they cost; further flags hold for all of them"""
    model: str = "llama-3.1-8b"
    """A known model (llama-3.1-8b, qwen3-30b-a3b, ...), a config.json, a model directory or a .gguf file"""
    max_context: int | None = None
    """Longest prompt plus answer, in tokens (default: the model's own)"""
    compare: bool = False
    """Run static, dynamic and continuous batching on the same load, side by side"""
    json: bool = False
    """Print JSON for machines"""
    chrome_trace: Path | None = None
    """File to write a trace to, for chrome://tracing or Perfetto"""
    machines: Machines = field(default_factory=Machines)
    techniques: Techniques = field(default_factory=Techniques)
    load: SimulatedLoad = field(default_factory=SimulatedLoad)
    asked: AskedAdapters = field(default_factory=AskedAdapters)
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


class SimulatedOutcome(NamedTuple):
    """What was simulated and how it went, by batching strategy."""

    basis: Basis
    workload: Workload
    fleets: dict[str, Fleet]
    results: dict[str, Result]
    queues: dict[str, QueueFigures]

    @property
    def fleet(self) -> Fleet:
        return next(iter(self.fleets.values()))


def run(config: Config) -> int:
    if config.files:
        from penstock.cli.simulate.side_by_side import run_all

        return run_all(config, lambda one: data_of(one, outcome_of(one, lambda _: None)))
    if config.compare and config.chrome_trace:
        raise ConfigError("a trace shows one run; leave out --compare or --chrome-trace")
    check_writable(config.chrome_trace)
    tracer = SimulationTracer() if config.chrome_trace else None
    outcome = outcome_of(config, lambda _: tracer)
    if config.json:
        print_json(data_of(config, outcome))
    else:
        report.print_heading(outcome.basis.rows(outcome.fleet), outcome.fleet, outcome.workload, config.target)
        if config.compare:
            report.print_comparison(outcome.results, outcome.queues)
        else:
            queues = next(iter(outcome.queues.values()))
            result = next(iter(outcome.results.values()))
            report.print_result(result, queues, config.target)
            print(f"KV held but empty: {100 * config.techniques.kv_waste_fraction(outcome.fleet.sizing, result):.1f} %")
            if config.asked.adapters:
                print(f"adapters read: {sum(one.num_adapter_loads for one in result.replicas):,}")
            if isinstance(cost := outcome.fleet.cost, PaddedCost):
                of_kv = f"{100 * cost.read_waste_fraction:.1f} % of the KV read"
                print(f"padding: {100 * cost.waste_fraction:.1f} % of the tokens computed, {of_kv}")
    if config.chrome_trace and tracer:
        write_file(config.chrome_trace, tracer.text())
    return 0


def outcome_of(config: Config, tracer_of: Callable[[str], SimulationTracer | None]) -> SimulatedOutcome:
    """Simulate what is asked; `tracer_of` is asked for a tracer of each strategy."""
    path = config.machines.profile
    basis = roofline_basis(config) if path is None else profile_basis(config, path)
    workload = config.load.workload(basis.vocab_size, config.asked.shares)
    chosen = STRATEGIES if config.compare else (config.scheduler.batching,)
    fleets: dict[str, Fleet] = {
        strategy: basis.make_fleet(replace(config, scheduler=replace(config.scheduler, batching=strategy)))
        for strategy in chosen
    }
    results: dict[str, Result] = {}
    for strategy, fleet in fleets.items():
        with StatusLine(f"simulating {strategy} batching of {len(workload):,} requests"):
            results[strategy] = simulate(fleet, workload, config.target, tracer=tracer_of(strategy))
    queues = {name: queue_figures(fleets[name], workload, result) for name, result in results.items()}
    return SimulatedOutcome(basis, workload, fleets, results, queues)


def data_of(config: Config, outcome: SimulatedOutcome) -> dict[str, Any]:
    """As JSON holds it."""
    basis, workload, fleets, results, queues = outcome
    data = report.as_data(config_file.as_data(config), basis.data, outcome.fleet, workload, results, queues)
    for name, found in data["results"].items():
        found["kv_waste_fraction"] = config.techniques.kv_waste_fraction(fleets[name].sizing, results[name])
        cost = fleets[name].cost
        padded = cost if isinstance(cost, PaddedCost) else PaddedCost(cost)
        found["padding_waste_fraction"] = padded.waste_fraction
        found["padding_read_waste_fraction"] = padded.read_waste_fraction
    return data


def roofline_basis(config: Config) -> Basis:
    """A known model on a known device."""
    spec = describe(config.model).spec
    machines, device = config.machines, device_of(config.machines)
    precision = precision_of(machines.weights, config.kv_format, device.achievable)
    reach = "at the vendor's" if machines.textbook else "at measured" if device.measured else device.trust
    rate = device.achievable.bandwidth_bytes_per_s / 1e9

    def rows(fleet: Fleet) -> list[tuple[str, str]]:
        return [
            ("model", f"{config.model}, {machines.weights} weights of {format_bytes(fleet.sizing.weight_bytes)}"),
            ("fleet", f"{_fleet(config)} x {device.name} of {format_bytes(device.memory_bytes)}, {machines.policy}"),
            (
                "step times",
                f"roofline {reach} {rate:,.0f} GB/s{', no overheads' if machines.textbook else ''}; "
                "not calibrated on a live engine",
            ),
            *config.techniques.rows(fleet.sizing),
            *adapter_rows(config.asked, spec),
            *(("not yet", gap) for gap in unserved(spec, machines.weights, config.kv_format)),
            *_link_rows(device, machines.layout),
        ]

    data = {"from": "roofline", "hardware": asdict(device), "achievable": asdict(device.achievable)}
    return Basis(spec.vocab_size, lambda asked: make_fleet(asked, spec, precision), rows, data)


def profile_basis(config: Config, path: Path) -> Basis:
    """An engine as it was measured."""
    from penstock.tools.cost.measured.ramps import MeasuredCost, RankedCost
    from penstock.tools.measure.profiles import fleet_of, open_profile  # numpy: not needed to say what the flags are

    if config.asked.adapters:
        raise ConfigError("a profile does not say what adapters take; simulate --adapters on --hardware and --model")
    profile, machines = open_profile(path), config.machines
    layout = replace(machines.layout, data=1) if machines.expert == 1 else machines.layout

    def make(asked: Config) -> Fleet:
        engine = EngineConfig(ModelConfig(profile.model, max_context=asked.max_context), asked.cache, asked.scheduler)
        fleet = fleet_of(profile, engine, layout, num_replicas=machines.replicas, **_ways(asked))
        return replace(fleet, split=asked.techniques.split(fleet.sizing.block_bytes / fleet.sizing.block_size, None))

    def rows(fleet: Fleet) -> list[tuple[str, str]]:
        error = profile.fitted.errors["all"]
        reported = f"measured by {profile.measuring.get('from')}, {100 * error.median:.1f} % off on steps not fitted"
        processor = profile.machine.get("processor")
        found = [
            ("model", profile.model),
            ("fleet", f"{_fleet(config)} x {processor}, {machines.policy}"),
            ("step times", reported),
        ]
        cost = fleet.cost
        if isinstance(cost, RankedCost):
            found.append(("all-reduce", f"{cost.traffic.tensor_link}; {MEASURED_LINK}"))
        if isinstance(cost, MeasuredCost) and cost.num_outside:
            share = 100.0 * cost.num_outside / cost.num_asked
            beyond = ", ".join(f"{name} {most:,}" for name, most in cost.furthest.items())
            found.append(("warning", f"{share:.1f} % of steps lie beyond what was measured ({beyond}): extrapolated"))
        return found

    return Basis(profile.vocab_size, make, rows, {"from": "profile", "profile": json.loads(profile.to_json())})


def adapter_rows(asked: AskedAdapters, spec: ModelSpec) -> list[tuple[str, str]]:
    if not asked.adapters:
        return []
    each = format_bytes(adapter_bytes(spec, asked.adapter_rank))
    there = f"{asked.num_slots} on the device, others in {1e3 * asked.load_s(spec):.0f} ms"
    return [
        ("adapters", f"{asked.adapters:,} of rank {asked.adapter_rank}, {each} each, {asked.adapter_skew}; {there}")
    ]


def device_of(machines: Machines) -> Hardware:
    """What each rank of a replica computes on: ranks of this machine's processor share it."""
    device, num_ranks = find_hardware(machines.hardware), machines.layout.devices_per_copy
    if machines.textbook:
        device = replace(device, measured=device.peak)
    has_parts = device.kind == "cpu" and device.measured_link is not None and device.num_parts == 1
    return device.part(num_ranks) if has_parts and num_ranks > 1 else device


def _link_rows(device: Hardware, layout: Layout) -> list[tuple[str, str]]:
    """What ranks exchange over, if there are several."""
    if layout.devices_per_copy == 1:
        return []
    link = device.link(layout.devices_per_copy)
    return [("all-reduce", f"{link}; {MEASURED_LINK if link == device.measured_link else TABLE_LINK}")]


def make_fleet(config: Config, spec: ModelSpec, precision: Precision) -> Fleet:
    machines = config.machines
    device, layout = device_of(machines), machines.layout
    layout.check(spec)
    engine = EngineConfig(ModelConfig(config.model, max_context=config.max_context), config.cache, config.scheduler)
    reached = device.achievable
    flops = reached.flops.bf16 or reached.flops_in(precision.compute)  # as an engine times it, whatever its weights
    pace = pace_of(device.kind, layout.devices_per_copy * flops)
    memory = Memory(
        free_bytes=device.memory_bytes,
        weight_bytes=weight_bytes(spec, precision, layout),
        workspace_bytes=config.asked.slot_bytes(spec, layout)
        if device.kind == "cpu"
        else config.asked.slot_bytes(spec, layout)
        + workspace_bytes(spec, batch_tokens(engine, spec, pace), config.scheduler.max_sequences, layout),
        bytes_per_kv_value=precision.kv_bytes * kv_fraction(spec, layout),
    )
    sizing = size_engine(engine, spec, memory, pace, frees=layout.devices_per_copy == 1)
    overhead = NO_OVERHEAD if machines.textbook else Overhead(overlaps=machines.overlap)
    return Fleet(
        config=config.techniques.reserved(engine, sizing),
        sizing=sizing,
        cost=config.techniques.padded(
            adapted(roofline(spec, device, precision, overhead, layout), config.asked, spec, device, layout)
        ),
        shelf=config.asked.shelf(spec),
        num_replicas=machines.replicas,
        depth=machines.depth,
        split=config.techniques.split(
            spec.kv_bytes_per_token(precision.kv_bytes), device.network, layout.devices_per_copy
        ),
        **_ways(config),
    )


def _ways(config: Config) -> dict[str, Any]:
    """How a fleet works, whatever it computes on."""
    machines, techniques, seed = config.machines, config.techniques, config.load.seed
    return {
        "policy": partial(POLICIES[machines.policy], seed),
        "max_pending": machines.max_pending,
        "guessing": techniques.guessing(seed),
        "scaling": techniques.scaling(machines.replicas),
        "seed": seed,
    }


def _fleet(config: Config) -> str:
    machines, techniques = config.machines, config.techniques
    layout = replace(machines.layout, data=max(1, machines.layout.num_sharing))
    parts = f"{machines.replicas}" + (f" to {techniques.scale_to}" if techniques.scale_to else "")
    if techniques.prefill_replicas:
        parts = f"{techniques.prefill_replicas} prefill + {parts} decode"
    return parts if layout.devices_per_copy == 1 else f"{parts} x {layout}"
