"""One way to serve a model: which devices, how the model lies on them, in which numbers, with which limits.

From a candidate follow its memory table and the fleet that the simulator runs; both go through the engine's own sizing.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.sizing import GIB, Memory, Sizing, size_engine
from penstock.tools.cost.cost import Cost
from penstock.tools.cost.hardware import Hardware
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.memory import activation_bytes, kv_fraction, reserve_bytes, weight_bytes
from penstock.tools.cost.precision import Precision
from penstock.tools.cost.roofline import Roofline, roofline
from penstock.tools.sim.replica.adapters import NO_ADAPTERS, AskedAdapters, adapted
from penstock.tools.sim.simulation import Fleet


class MeasuredEngine(NamedTuple):
    cost: Cost
    sizing: Sizing
    depth: int


@dataclass(frozen=True)
class Candidate:
    spec: ModelSpec
    hardware: Hardware
    layout: Layout
    """Of one replica. More than one copy where they share their experts."""
    weights: str
    """What the weights are called: bf16, fp8, int4, or `file` for those of the file at hand."""
    kv: str
    precision: Precision
    max_sequences: int = 256
    max_batch_tokens: int = 2048
    max_context: int | None = None
    prefix_caching: bool = True
    measured: "MeasuredEngine | None" = None
    """An engine that was measured, to use instead of the roofline and of arithmetic."""
    adapters: AskedAdapters = NO_ADAPTERS

    @property
    def num_devices(self) -> int:
        """Of one replica."""
        return self.layout.num_devices

    @property
    def name(self) -> str:
        copies = "" if self.num_devices == 1 else f" {self.layout}"
        return f"{self.num_devices} x {self.hardware.name}{copies}, {self.weights} weights, {self.kv} KV"

    @property
    def key(self) -> tuple[object, ...]:
        """What tells candidates of one plan apart."""
        return (
            self.hardware.name, self.layout, self.weights, self.kv, self.max_sequences, self.max_batch_tokens,
            self.max_context, self.prefix_caching,
        )  # fmt: skip

    @cached_property
    def engine(self) -> EngineConfig:
        return EngineConfig(
            ModelConfig(max_context=self.max_context),
            CacheConfig(prefix_caching=self.prefix_caching),
            SchedulerConfig(max_batch_tokens=self.max_batch_tokens, max_sequences=self.max_sequences),
        )

    @cached_property
    def memory(self) -> Memory:
        """Of the fullest device. On a CPU the engine takes no more than a gibibyte, or one whole context if that is more."""
        one_context = (self.max_context or self.spec.max_context) * self.spec.kv_bytes_per_token(
            self.precision.kv_bytes
        )
        return Memory(
            free_bytes=self.hardware.memory_bytes,
            weight_bytes=weight_bytes(self.spec, self.precision, self.layout),
            workspace_bytes=self.activation_bytes + self.reserve_bytes + self.adapter_bytes,
            bytes_per_kv_value=self.precision.kv_bytes * kv_fraction(self.spec, self.layout),
            enough_kv_bytes=max(GIB, one_context) if self.hardware.kind == "cpu" else None,
        )

    @property
    def activation_bytes(self) -> int:
        """None is set aside on a CPU, whose memory is not ours alone to begin with."""
        if self.hardware.kind == "cpu":
            return 0
        return activation_bytes(self.spec, self.max_batch_tokens, self.layout)

    @property
    def reserve_bytes(self) -> int:
        """For recorded steps and what allocators lose; a CPU has neither."""
        if self.hardware.kind == "cpu":
            return 0
        return reserve_bytes(self.spec, self.max_sequences)

    @property
    def adapter_bytes(self) -> int:
        """Of all slots."""
        return self.adapters.slot_bytes(self.spec, self.layout)

    @cached_property
    def sizing(self) -> Sizing:
        """Raises ConfigError if nothing is left for the cache."""
        if self.measured is not None:
            return self.measured.sizing
        return size_engine(self.engine, self.spec, self.memory, frees=self.layout.devices_per_copy == 1)

    @cached_property
    def roofline(self) -> Roofline:
        return roofline(self.spec, self.hardware, self.precision, layout=self.layout)

    @cached_property
    def step_cost(self) -> Cost:
        plain = self.measured.cost if self.measured else self.roofline
        return adapted(plain, self.adapters, self.spec, self.hardware, self.layout)

    def fleet(self, num_copies: int = 1) -> Fleet:
        """Every copy of the model is an engine of its own."""
        depth = self.measured.depth if self.measured else 1
        shelf = self.adapters.shelf(self.spec)
        return Fleet(self.engine, self.sizing, self.step_cost, num_copies, depth=depth, shelf=shelf)

    @property
    def num_copies(self) -> int:
        """Engines of one replica: copies that share experts are engines of their own."""
        return self.layout.data

    def with_limits(self, max_sequences: int, max_batch_tokens: int) -> "Candidate":
        return replace(self, max_sequences=max_sequences, max_batch_tokens=max(max_batch_tokens, max_sequences))
