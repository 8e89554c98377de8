"""What the parts of a step must read and compute at least: bytes and operations, beside which measured times are held."""

from typing import NamedTuple

from penstock.runtime.core.batch import Batch
from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec, MoE
from penstock.tools.cost.hardware import Ceilings, NumberFormat
from penstock.tools.cost.roofline import Sight, expected_experts, pairs_and_reach


class PartWork(NamedTuple):
    """Of one part, in all layers."""

    moved_bytes: float
    flops: float

    def floor_s(self, ceilings: Ceilings, number_format: NumberFormat) -> float:
        return max(self.moved_bytes / ceilings.bandwidth_bytes_per_s, self.flops / ceilings.flops_in(number_format))

    def plus(self, other: "PartWork") -> "PartWork":
        return PartWork(self.moved_bytes + other.moved_bytes, self.flops + other.flops)


NO_WORK = PartWork(0.0, 0.0)
LINEARS = ("qkv", "out", "gate_up", "down")


def work_by_part(spec: ModelSpec, batch: Batch, weight_bytes: float, kv_bytes: float) -> dict[str, PartWork]:
    """`weight_bytes` and `kv_bytes` are of one number. Parts that are kernels of their own on one device or another, and
    `linears`, which is four of them together."""
    num_tokens, num_drawn = batch.num_tokens, sum(chunk.samples for chunk in batch.chunks)
    found = dict.fromkeys((*LINEARS, "experts", "attention"), NO_WORK)
    for layer in spec.layers:
        attention, mlp = layer.attention, layer.mlp
        if isinstance(attention, GQA):
            width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
            sizes = {"qkv": spec.hidden_size * (width + 2 * kv_width), "out": spec.hidden_size * width}
            pairs, positions = pairs_and_reach(batch.chunks, Sight(attention.window, attention.causal))
            moved = positions * 2 * kv_width * kv_bytes
            found["attention"] = found["attention"].plus(PartWork(moved, 4.0 * width * pairs))
        else:
            sizes = {}
        if isinstance(mlp, GatedMLP):
            sizes |= {"gate_up": 2 * spec.hidden_size * mlp.width, "down": spec.hidden_size * mlp.width}
        elif isinstance(mlp, MoE):
            size = 3 * spec.hidden_size * mlp.expert.width
            met = expected_experts(mlp.num_experts, mlp.num_active, num_tokens)
            work = PartWork(size * met * weight_bytes, 2.0 * size * mlp.num_active * num_tokens)
            found["experts"] = found["experts"].plus(work)
        for name, size in sizes.items():
            found[name] = found[name].plus(PartWork(size * weight_bytes, 2.0 * size * num_tokens))
    vocabulary = spec.vocab_size * spec.hidden_size
    found["output"] = PartWork(vocabulary * weight_bytes, 2.0 * vocabulary * num_drawn)
    for name in LINEARS:
        found["linears"] = found.get("linears", NO_WORK).plus(found[name])
    return found
