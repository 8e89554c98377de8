"""Adapters in simulated time: what they hold, what they add to steps, and when one that is not on the device will be.

Their thin matrices are read once for each adapter in a batch, and every token is multiplied with its own; how many adapters a
batch has follows from how requests choose among them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.fields import Checked, leaf, setting
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models.adapters import adapter_bytes
from penstock.runtime.models.spec import ModelSpec
from penstock.tools.cost.cost import Cost, Summing, TimeVaryingCost
from penstock.tools.cost.hardware import Hardware
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.cost.measured.warmth import Cooling

GPU_LAYER_S = 16e-6
"""What launches for adapters add to a layer of a recorded step, whatever they compute; measured on an H200."""
READ_BYTES_PER_S = 3.0e9
"""At which an adapter is read, checked and laid on a device; measured on an H200, files in memory."""


@dataclass(frozen=True, slots=True)
class AskedAdapters(Checked):
    """Adapters that requests ask for."""

    adapters: int = leaf(0, 0, 100_000)
    """Adapters over the model, each asked for as a model of its own (0: the model alone is asked for)"""
    adapter_rank: int = setting(16, 1, 512)
    """Rank of their matrices, which change all linears"""
    adapter_skew: Literal["zipf", "uniform"] = setting("zipf")
    """How requests choose among them: each half, a third, a quarter ... as often as the first, or all alike"""
    max_adapters: int = leaf(8, 1, 4096)
    """Adapters on the device at once; others wait until they are read"""

    @property
    def shares(self) -> tuple[float, ...]:
        """Of the requests that ask for each."""
        weights = [1.0 / (1 + number) if self.adapter_skew == "zipf" else 1.0 for number in range(self.adapters)]
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def num_slots(self) -> int:
        return min(self.adapters, self.max_adapters)

    def slot_bytes(self, spec: ModelSpec, layout: Layout) -> int:
        """Bytes that all slots take of one device."""
        if not self.adapters:
            return 0
        return self.num_slots * adapter_bytes(spec, self.adapter_rank) // layout.devices_per_copy

    def load_s(self, spec: ModelSpec) -> float:
        """Until an adapter that lies in its file alone is on the device."""
        return adapter_bytes(spec, self.adapter_rank) / READ_BYTES_PER_S

    def shelf(self, spec: ModelSpec) -> "ShelfRoom | None":
        return ShelfRoom(self.num_slots, self.load_s(spec)) if self.adapters else None


NO_ADAPTERS = AskedAdapters()


def adapted(cost: Cost, asked: AskedAdapters, spec: ModelSpec, hardware: Hardware, layout: Layout) -> Cost:
    """The cost with what adapters add; as it is where none are asked for."""
    if not asked.adapters:
        return cost
    reached, each = hardware.achievable, adapter_bytes(spec, asked.adapter_rank)
    flops = (reached.flops.bf16 or reached.flops.fp32 or 1e12) * layout.devices_per_copy
    return AdaptedCost(
        cost,
        shares=asked.shares,
        most=asked.num_slots,
        layers_s=0.0 if hardware.kind == "cpu" else GPU_LAYER_S * spec.num_layers,
        adapter_s=each / (reached.bandwidth_bytes_per_s * layout.devices_per_copy),
        token_s=each / flops,  # two operations a number of two bytes
    )


@dataclass(frozen=True)
class AdaptedCost:
    """Seconds of batches whose sequences have adapters, by the cost of the model alone."""

    cost: Cost
    shares: tuple[float, ...]
    most: int
    layers_s: float
    adapter_s: float
    token_s: float
    _distinct: dict[int, float] = field(default_factory=dict, compare=False)

    def num_distinct(self, num_sequences: int) -> float:
        """Adapters that so many sequences have, on average."""
        known = self._distinct.get(num_sequences)
        if known is None:
            known = sum(1.0 - (1.0 - share) ** num_sequences for share in self.shares)
            known = self._distinct[num_sequences] = min(known, float(self.most))
        return known

    def _extra_s(self, num_sequences: int, num_tokens: int) -> float:
        if not num_sequences:
            return 0.0
        return self.layers_s + self.num_distinct(num_sequences) * self.adapter_s + num_tokens * self.token_s

    def _batch_s(self, batch: Batch) -> float:
        return self._extra_s(len(batch.chunks), sum(chunk.length for chunk in batch.chunks))

    def step_s(self, batch: Batch) -> float:
        return self.cost.step_s(batch) + self._batch_s(batch)

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        extra_s = self._batch_s(batch)
        return [each + extra_s for each in self.cost.run_s(batch, num_steps)]

    @property
    def is_summing(self) -> bool:
        return isinstance(self.cost, Summing) and self.cost.is_summing

    def sum_s(self, num_sequences: int, num_positions: int, prompts: Sequence[Chunk]) -> float:
        num_tokens = num_sequences + sum(chunk.length for chunk in prompts)
        plain_s = self.cost.sum_s(num_sequences, num_positions, prompts)  # type: ignore[attr-defined]
        return float(plain_s + self._extra_s(num_sequences + len(prompts), num_tokens))

    def sums_s(self, num_sequences: int, num_positions: int, num_steps: int) -> list[float]:
        extra_s = self._extra_s(num_sequences, num_sequences)
        plain = self.cost.sums_s(num_sequences, num_positions, num_steps)  # type: ignore[attr-defined]
        return [each + extra_s for each in plain]

    @property
    def cooling(self) -> Cooling | None:
        return self.cost.cooling if isinstance(self.cost, TimeVaryingCost) else None

    @property
    def slowdowns(self) -> Sequence[Slowdown]:
        return self.cost.slowdowns if isinstance(self.cost, TimeVaryingCost) else ()

    def cold_s(self, batch: Batch, num_steps: int) -> list[float]:
        return self.cost.cold_s(batch, num_steps) if isinstance(self.cost, TimeVaryingCost) else [0.0] * num_steps


class ShelfRoom(NamedTuple):
    """What every replica has room for."""

    num_slots: int
    load_s: float
    """Until an adapter that is not there is."""


class AdapterShelf:
    """One replica's slots. The least recently asked for leaves, as in the engine where nobody uses it."""

    def __init__(self, room: ShelfRoom) -> None:
        self._room = room
        self._ready_s: OrderedDict[str, float] = OrderedDict()
        self.num_loads = 0

    def ask(self, adapter: str, now: float) -> float:
        """When a request for the adapter may enter. One is read at a time."""
        if not adapter:
            return now
        if adapter not in self._ready_s:
            begin_s = max((now, *self._ready_s.values()))
            if len(self._ready_s) >= self._room.num_slots:
                self._ready_s.popitem(last=False)
            self._ready_s[adapter] = begin_s + self._room.load_s
            self.num_loads += 1
        self._ready_s.move_to_end(adapter)
        return max(now, self._ready_s[adapter])
