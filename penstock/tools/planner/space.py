"""Which candidates there are: devices, layouts that cut the model evenly, number formats, limits. The rest is left out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

from penstock.errors import ConfigError
from penstock.metrics.summary import Slo
from penstock.runtime.models.spec import GQA, ModelSpec, MoE
from penstock.tools.cost.hardware import Hardware
from penstock.tools.cost.layout import SINGLE, Layout
from penstock.tools.cost.precision import KvFormat, WeightFormat, precision_of
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Demand
from penstock.tools.planner.steady import Steady, bound
from penstock.tools.sim.replica.adapters import NO_ADAPTERS, AskedAdapters

TENSOR = (1, 2, 4, 8)
PIPELINE = (1, 2, 4)
SEQUENCES = (64, 256, 1024)
BUDGETS = (2048, 8192)
FILE = "file"
"""What weights are called that are taken as they lie."""
NEARLY = 0.9
"""Smaller limits are kept if they carry this share of what larger ones do."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What may be considered."""

    hardware: tuple[Hardware, ...]
    weights: tuple[str, ...] = ("bf16", "fp8")
    kv: tuple[str, ...] = ("bf16", "fp8")
    max_devices: int = 8
    """In one replica."""
    max_context: int | None = None
    adapters: AskedAdapters = NO_ADAPTERS


@dataclass(frozen=True, slots=True)
class Rejected:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that fits, and the bound on what one copy of it carries."""

    candidate: Candidate
    steady: Steady


def explore(
    spec: ModelSpec, search_space: SearchSpace, demand: Demand, slo: Slo, file_bytes: int | None = None
) -> tuple[list[Found], list[Rejected]]:
    """All that fit, each with the limits that its bound likes best; and why the others do not. Weights that lie here
    quantized take `file_bytes`: a CPU computes with them as they are, a GPU widens them."""
    found: list[Found] = []
    rejected: dict[str, Rejected] = {}
    fitting: set[tuple[object, ...]] = set()
    for plain in candidates(spec, search_space, rejected, file_bytes):
        kind = plain.hardware.name, plain.weights, plain.kv
        if plain.layout.pipeline > 1 and kind in fitting and plain.weights != FILE:
            continue  # stages are for what a tensor group does not hold
        try:
            found.append(_with_best_limits(plain, demand, slo))
            fitting.add(kind)
        except ConfigError as error:
            rejected[plain.name] = Rejected(plain.name, str(error))
    return found, list(rejected.values())


def candidates(
    spec: ModelSpec, search_space: SearchSpace, rejected: dict[str, Rejected], file_bytes: int | None
) -> Iterator[Candidate]:
    asked: dict[str, Any] = {"max_context": search_space.max_context, "adapters": search_space.adapters}
    for hardware in search_space.hardware:
        cuts = list(layouts(spec, hardware, search_space.max_devices))
        if file_bytes is not None and hardware.kind == "cpu" and _stays_packed(spec):
            whole = precision_of("bf16", "bf16", hardware.achievable)
            precision = replace(whole, weight_bytes=file_bytes / spec.num_parameters)
            for layout in [SINGLE] if hardware.num_parts == 1 else cuts:  # one process on a whole machine
                yield Candidate(spec, hardware, layout, FILE, "bf16", precision, **asked)
            continue
        for weights, kv in product(search_space.weights, search_space.kv):
            try:
                precision = precision_of(cast(WeightFormat, weights), cast(KvFormat, kv), hardware.achievable)
            except ConfigError as error:
                name = f"{hardware.name}, {weights} weights"
                rejected[name] = Rejected(name, str(error))
                continue
            for layout in cuts:
                yield Candidate(spec, hardware, layout, weights, kv, precision, **asked)


def _stays_packed(spec: ModelSpec) -> bool:
    """Mixtures, latents and states are widened on a CPU too."""
    return all(isinstance(layer.attention, GQA) and not isinstance(layer.mlp, MoE) for layer in spec.layers)


def layouts(spec: ModelSpec, hardware: Hardware, max_devices: int) -> Iterator[Layout]:
    """Tensor groups inside a machine, stages where more is needed, experts whole or in slices."""
    has_experts = any(isinstance(layer.mlp, MoE) for layer in spec.layers)
    for pipeline in PIPELINE:
        for tensor in TENSOR:
            if tensor > hardware.devices_per_machine or tensor * pipeline > max_devices:
                continue
            if hardware.num_parts > 1 and tensor * pipeline != hardware.num_parts:
                continue  # the machine's other parts would have nothing to do
            choices = [Layout(tensor, pipeline)]
            if has_experts and pipeline == 1 and tensor > 1:
                choices.append(Layout(tensor, expert=tensor))
                if 2 * tensor <= max_devices:
                    choices.append(Layout(tensor, expert=2 * tensor, data=2))
            for layout in choices:
                try:
                    layout.check(spec)
                except ConfigError:
                    continue
                yield layout


def _check_capacity(candidate: Candidate, demand: Demand) -> None:
    """The cache must hold the longest request, or it would be refused."""
    needed, held = demand.sizes.largest_total, candidate.sizing.num_cached_tokens
    if held < needed:
        raise ConfigError(f"the KV cache holds {held:,} tokens, less than the longest request's {needed:,}")
    if candidate.sizing.max_context < needed:
        raise ConfigError(f"the longest request has {needed:,} tokens; the context is {candidate.sizing.max_context:,}")


def _with_best_limits(plain: Candidate, demand: Demand, slo: Slo) -> Found:
    """The smallest limits whose bound is nearly the best. Raises ConfigError if it does not fit."""
    _check_capacity(plain, demand)
    options = []
    for sequences in SEQUENCES:
        for budget in BUDGETS:
            candidate = plain.with_limits(sequences, budget)
            try:
                _check_capacity(candidate, demand)
            except ConfigError:
                continue
            options.append(Found(candidate, bound(candidate, demand.sizes, slo, demand.mean_repeated)))
    if not options:
        raise ConfigError("no memory is left for the longest request beside the smallest batch")
    best = max(option.steady.rate for option in options)
    return next(option for option in options if option.steady.rate >= NEARLY * best)


def with_kv(candidate: Candidate, kv: str) -> Candidate:
    """The same with another number format in the cache."""
    weights = cast(WeightFormat, candidate.weights if candidate.weights != FILE else "bf16")
    precision = precision_of(weights, cast(KvFormat, kv), candidate.hardware.achievable)
    return replace(candidate, kv=kv, precision=replace(candidate.precision, kv_bytes=precision.kv_bytes))
