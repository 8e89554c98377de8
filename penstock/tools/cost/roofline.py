"""Seconds a batch takes, from first principles: bytes over bandwidth or operations over peak, whichever is longer.

A step is parts run one after the other, each bound by its own roof:

    linears    every weight is read once, each token is multiplied with all of them
    experts    as linears, but only the experts that some token chose are read
    attention  each chunk reads the KV it can see (writing its own is small); operations grow with query-key pairs
    output     rows that draw a token, times the vocabulary
    pointwise  norms, rotations, activations: memory traffic in proportion to tokens; states read and written by sequences
               that draw (a prompt's chunk does so once for many tokens)
    traffic    what several devices tell each other, where a model lies over more than one
    overhead   launches and host work that no roof explains

Devices of a tensor group share every part evenly. Pipeline stages work on several groups of a batch's sequences in turn: with
as many groups as stages none of them idles; with fewer, the rest is the pipeline's bubble.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from penstock.fields import Checked, leaf
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models.spec import ModelSpec, MoE
from penstock.tools.cost.cost import moved
from penstock.tools.cost.hardware import Ceilings, Hardware
from penstock.tools.cost.layout import SINGLE, Layout, Traffic, traffic_of
from penstock.tools.cost.precision import Precision


@dataclass(frozen=True, slots=True)
class Overhead(Checked):
    """Time that no roof explains. The defaults fit decode steps of 0.6B, 8B and 30B-A3B models, 1 to 128 sequences, as our
    engine takes them on an H200: benchmarks/results/gpu-*.json."""

    layer_s: float = leaf(18e-6, 0, 60, unit="seconds")
    """A layer's launches, ramps and tails."""
    sequence_s: float = leaf(0.15e-6, 0, 60, unit="seconds")
    """What a layer takes longer for each sequence that draws a token."""
    host_s: float = leaf(250e-6, 0, 60, unit="seconds")
    """Schedule, sample and hand over tokens, each step."""
    overlaps: bool = True
    """The host works while the device does: the longer of the two counts, not their sum."""


_ACTIVATION_BYTES = {"fp32": 4.0}
"""Between products values are held in 16 bits, but where everything is computed in 32."""

STATE_BYTES = 4.0
"""Of a number of a state: they are kept in 32 bits."""

NO_OVERHEAD = Overhead(layer_s=0.0, sequence_s=0.0, host_s=0.0)


class Work(NamedTuple):
    """What of a batch decides its duration. `pairs` and `reach` have one entry per kind of attention."""

    num_tokens: int
    num_drawn: int
    """Rows of the output matrix product."""
    pairs: tuple[int, ...]
    """Query-key pairs scored."""
    reach: tuple[int, ...]
    """KV positions read, summed over chunks."""


class StepParts(NamedTuple):
    """Seconds of a step by part."""

    linears: float
    experts: float
    attention: float
    output: float
    pointwise: float
    overhead: float
    traffic: float = 0.0
    """Sums and exchanges between devices, hops between stages."""


class Sight(NamedTuple):
    """Which positions a query sees. Layers with equal sight are counted together."""

    window: int | None
    causal: bool


class _AttentionKind(NamedTuple):
    sight: Sight
    flops_per_pair: float
    bytes_per_position: float
    """Over all layers of this kind."""


def roofline(
    spec: ModelSpec,
    hardware: Hardware,
    precision: Precision | None = None,
    overhead: Overhead | None = None,
    layout: Layout = SINGLE,
) -> "Roofline":
    """The cost of a model that lies over devices in a layout. Raises ConfigError if it cannot."""
    layout.check(spec)
    precision = precision or Precision()
    traffic = traffic_of(spec, layout, hardware, _ACTIVATION_BYTES.get(precision.compute, 2.0))
    return Roofline(spec, hardware.achievable, precision, overhead, traffic)


class Roofline:
    """The cost of one model on the devices of one replica; what does not depend on the batch is summed up beforehand."""

    def __init__(
        self,
        spec: ModelSpec,
        ceilings: Ceilings,
        precision: Precision | None = None,
        overhead: Overhead | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Without `traffic` the model lies on one device."""
        precision = precision or Precision()
        overhead = overhead or Overhead()
        layout = traffic.layout if traffic else SINGLE
        self._layout = layout
        self._traffic = traffic if traffic and layout.devices_per_copy * layout.expert > 1 else None
        self._stage_fraction = -(-spec.num_layers // layout.pipeline) / spec.num_layers  # of the longest
        self._flops = ceilings.flops_in(precision.compute)
        self._bandwidth = ceilings.bandwidth_bytes_per_s
        self._weight_bytes, self._vocabulary_bytes = precision.weight_bytes, precision.bytes_of_vocabulary
        self._attention = _attention_kinds(spec, precision.kv_bytes, layout)
        experts = Counter(layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoE))
        self._experts = [
            (moe, count * moe.expert.num_parameters(spec.hidden_size) / layout.expert_shards)
            for moe, count in experts.items()
        ]
        """Each kind, and the parameters of one of its experts on a device, over all layers."""
        self._linear_parameters = _linear_parameters(spec, layout)
        self._pointwise_bytes = _pointwise_values(spec, layout) * _ACTIVATION_BYTES.get(precision.compute, 2.0)
        self._state_bytes = (
            2.0 * STATE_BYTES * sum(group.values_per_sequence for group in spec.cache_groups) / layout.tensor
        )
        self._output_parameters = spec.vocab_size * spec.hidden_size / layout.tensor if spec.generates else 0.0
        self._layers_s = overhead.layer_s * spec.num_layers
        self._sequence_s = overhead.sequence_s * spec.num_layers
        self._host_s = overhead.host_s
        self._overlaps = overhead.overlaps
        self._bare_s = lru_cache(maxsize=65536)(self._bare)

    def step_s(self, batch: Batch) -> float:
        return self.seconds(self.work(batch), len(batch.chunks))

    def seconds(self, work: Work, num_sequences: int) -> float:
        """Of a step, from what it adds up to."""
        num_groups = min(self._layout.pipeline, num_sequences)
        if num_groups > 1:
            return self._pipelined_s(work, num_groups)
        return self._total_s(self._bare_s(work.num_tokens, work.num_drawn), self._attention_s(work.pairs, work.reach))

    def _pipelined_s(self, work: Work, num_groups: int) -> float:
        """Every stage takes the groups in turn, and a group comes back when it has passed all stages."""
        num_tokens, num_drawn = -(-work.num_tokens // num_groups), -(-work.num_drawn // num_groups)
        attention_s = self._attention_s(work.pairs, work.reach) / num_groups
        passage_s = self._bare_s(num_tokens, num_drawn) + attention_s
        return self._total_s(passage_s * max(1.0, num_groups * self._stage_fraction), 0.0)

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        """As `step_s`, spelled out in loops with no calls inside: most of a simulation's steps come through here."""
        if num_steps == 1:
            return [self.step_s(batch)]
        work = self.work(batch)
        if self._layout.pipeline > 1:
            return [self.step_s(moved(batch, number)) for number in range(num_steps)]
        bare_s, host_s = self._bare_s(work.num_tokens, work.num_drawn), self._host_s
        peak, bandwidth = self._flops, self._bandwidth
        attention_s = [0.0] * num_steps
        for kind, pairs, reach in zip(self._attention, work.pairs, work.reach):
            flops, size = kind.flops_per_pair, kind.bytes_per_position
            if kind.sight.window is None:
                # In every further step each query sees one key more and each chunk reads one position more.
                growth, spread = work.num_tokens, len(batch.chunks)
                seen = [(pairs + growth * number, reach + spread * number) for number in range(num_steps)]
            else:
                seen = _seen_run(batch, kind.sight.window, num_steps)
            roofs = [(p * flops / peak, r * size / bandwidth) for p, r in seen]
            attention_s = [so_far + (a if a > b else b) for so_far, (a, b) in zip(attention_s, roofs)]
        if self._overlaps:
            return [max(bare_s + seconds, host_s) for seconds in attention_s]
        return [bare_s + seconds + host_s for seconds in attention_s]

    @property
    def is_summing(self) -> bool:
        """Every layer sees everything, so that sums of lengths say all."""
        return all(kind.sight == Sight(None, True) for kind in self._attention)

    def sum_s(self, num_sequences: int, num_positions: int, prompts: Sequence[Chunk]) -> float:
        pairs, reach = pairs_and_reach(prompts, self._attention[0].sight)
        work = Work(
            num_sequences + sum([chunk.length for chunk in prompts]),
            num_sequences + sum([1 + chunk.num_drafts for chunk in prompts if chunk.samples]),
            (num_positions + pairs,),
            (num_positions + reach,),
        )
        return self.seconds(work, num_sequences + len(prompts))

    def sums_s(self, num_sequences: int, num_positions: int, num_steps: int) -> list[float]:
        """As `run_s`. A decode's query sees as many keys as positions are read for it, so one number stands for both."""
        kind = self._attention[0]
        bare_s, host_s = self._bare_s(num_sequences, num_sequences), self._host_s
        is_hidden = self._overlaps and bare_s >= host_s
        if num_steps == 1 or self._layout.pipeline > 1 or (self._overlaps and not is_hidden):
            ends = range(num_positions, num_positions + num_steps * num_sequences, num_sequences)
            return [self.sum_s(num_sequences, end, ()) for end in ends]
        host_s = 0.0 if is_hidden else host_s
        flops, size, peak, bandwidth = kind.flops_per_pair, kind.bytes_per_position, self._flops, self._bandwidth
        if flops * bandwidth < size * peak:
            return [
                bare_s + (num_positions + number * num_sequences) * size / bandwidth + host_s
                for number in range(num_steps)
            ]
        return [
            bare_s + (num_positions + number * num_sequences) * flops / peak + host_s for number in range(num_steps)
        ]

    def work(self, batch: Batch) -> Work:
        """Add up a batch. Chunk fields are read by position: this runs for every chunk of every simulated step."""
        chunks = batch.chunks
        seen = [pairs_and_reach(chunks, kind.sight) for kind in self._attention]
        return Work(
            num_tokens=sum([chunk[2] for chunk in chunks]),
            num_drawn=sum([1 + chunk[7] for chunk in chunks if chunk[5]]),
            pairs=tuple([pairs for pairs, _ in seen]),
            reach=tuple([reach for _, reach in seen]),
        )

    def parts(self, work: Work) -> StepParts:
        """Where a step's time goes; adds up to `step_s` but for what pipeline stages do at the same time."""
        bare = self._bare_parts(work.num_tokens, work.num_drawn)
        attention_s = self._attention_s(work.pairs, work.reach)
        device_s = self._bare_s(work.num_tokens, work.num_drawn) + attention_s
        idle_s = self._total_s(device_s, 0.0) - device_s
        return bare._replace(attention=attention_s, overhead=bare.overhead + idle_s)

    def _total_s(self, bare_s: float, attention_s: float) -> float:
        device_s = bare_s + attention_s
        return max(device_s, self._host_s) if self._overlaps else device_s + self._host_s

    def _bare(self, num_tokens: int, num_drawn: int) -> float:
        """The device's time but for attention. Added by hand: `sum` rounds floats differently from Python 3.12 on."""
        parts = self._bare_parts(num_tokens, num_drawn)
        return parts.linears + parts.experts + parts.output + parts.pointwise + parts.overhead + parts.traffic

    def _bare_parts(self, num_tokens: int, num_drawn: int) -> StepParts:
        size = self._linear_parameters
        linears = self._roof(2.0 * size * num_tokens, size * self._weight_bytes)
        experts = 0.0
        num_met = num_tokens * self._layout.num_sharing
        for moe, size in self._experts:
            touched = expected_experts(moe.num_experts, moe.num_active, num_met)
            experts += self._roof(2.0 * size * moe.num_active * num_met, size * touched * self._weight_bytes)
        output = 0.0
        if num_drawn:
            size = self._output_parameters
            output = self._roof(2.0 * size * num_drawn, size * self._vocabulary_bytes)
        pointwise = (num_tokens * self._pointwise_bytes + num_drawn * self._state_bytes) / self._bandwidth
        traffic = self._traffic.seconds(num_tokens) + self._traffic.hops_s(num_tokens) if self._traffic else 0.0
        overhead = self._layers_s + num_drawn * self._sequence_s
        return StepParts(linears, experts, 0.0, output, pointwise, overhead, traffic)

    def _attention_s(self, pairs: tuple[int, ...], reach: tuple[int, ...]) -> float:
        total = 0.0
        for kind, num_pairs, num_positions in zip(self._attention, pairs, reach):
            total += self._roof(num_pairs * kind.flops_per_pair, num_positions * kind.bytes_per_position)
        return total

    def _roof(self, flops: float, moved_bytes: float) -> float:
        return max(flops / self._flops, moved_bytes / self._bandwidth)


def expected_experts(num_experts: int, num_active: int, num_tokens: int) -> float:
    """Distinct experts that tokens choose between them, if each chooses evenly and on its own."""
    return num_experts * (1.0 - (1.0 - num_active / num_experts) ** num_tokens)


def pairs_and_reach(chunks: Iterable[Chunk], sight: Sight) -> tuple[int, int]:
    """Query-key pairs and KV positions of a batch.

    A causal query at position p sees p + 1 keys, so a chunk of positions start .. end - 1 scores

        (start + 1) + (start + 2) + ... + end  =  length * end - length * (length - 1) / 2

    pairs. Under a window a query sees at most `window` keys, and the chunk as a whole window - 1 keys before its start.
    """
    window, causal = sight
    pairs = reach = 0
    for chunk in chunks:
        start, length = chunk[1], chunk[2]
        end = start + length
        if not causal:
            pairs += length * end
            reach += end
        elif window is None or end <= window:
            pairs += length * end - length * (length - 1) // 2
            reach += end
        else:
            growing = max(0, window - start)
            pairs += growing * (start + window + 1) // 2 + (length - growing) * window
            reach += min(end, length + window - 1)
    return pairs, reach


def _seen_run(batch: Batch, window: int, num_steps: int) -> list[tuple[int, int]]:
    """As `pairs_and_reach` for each of a run of steps under a window: a single token sees min(end, window) keys, which grows
    until the window is full."""
    if any(chunk.length != 1 for chunk in batch.chunks):
        sight = Sight(window, True)
        return [pairs_and_reach(moved(batch, number).chunks, sight) for number in range(num_steps)]
    total = sum([min(chunk.start + 1, window) for chunk in batch.chunks])
    rooms = sorted([window - chunk.start - 1 for chunk in batch.chunks], reverse=True)
    num_growing = len(rooms)
    seen = []
    for number in range(num_steps):
        seen.append((total, total))
        while num_growing and rooms[num_growing - 1] <= number:
            num_growing -= 1
        total += num_growing
    return seen


def _attention_kinds(spec: ModelSpec, kv_bytes: float, layout: Layout) -> tuple[_AttentionKind, ...]:
    flops: dict[Sight, float] = {}
    moved: dict[Sight, float] = {}
    for layer in spec.layers:
        attention = layer.attention
        sight = Sight(attention.window, attention.causal)
        flops[sight] = flops.get(sight, 0.0) + attention.flops_per_pair / layout.tensor
        read = attention.kv_values_per_token * kv_bytes / layout.kv_shards(attention)
        moved[sight] = moved.get(sight, 0.0) + read
    return tuple(_AttentionKind(sight, flops[sight], moved[sight]) for sight in flops)


def _linear_parameters(spec: ModelSpec, layout: Layout) -> float:
    """On one device, all weights that every token meets, but the output matrix: routers yes, experts and embeddings no."""
    hidden = spec.hidden_size
    total = float(spec.parameters_by_part["norms"])
    for layer in spec.layers:
        total += layout.attention_parameters(layer.attention, hidden) + layout.dense_parameters(layer.mlp, hidden)
    return total


def _pointwise_values(spec: ModelSpec, layout: Layout) -> float:
    """Numbers that a token's way between the matrix products reads and writes: two norms that add to the residual
    (in two, out two), queries, keys and values rotated and stored (in one, out one), and the gate (in two, out one).
    """
    count = 0.0
    for layer in spec.layers:
        mlp = layer.mlp
        width = mlp.num_active * mlp.expert.width if isinstance(mlp, MoE) else mlp.width
        cut = 2 * (layer.attention.q_size + layer.attention.kv_values_per_token) + 3 * width
        count += 8 * spec.hidden_size + cut / layout.tensor
    return count
