"""How a model's numbers are held and multiplied."""

from dataclasses import dataclass
from typing import Literal

from penstock.fields import Checked, leaf
from penstock.tools.cost.hardware import Ceilings, NumberFormat

WeightFormat = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"]
KvFormat = Literal["bf16", "fp16", "fp32", "fp8", "int8"]

BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53125}
"""Of one number; `int4` with a 16-bit scale for every 64."""

_WHOLE: tuple[NumberFormat, ...] = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Precision(Checked):
    weight_bytes: float = leaf(2.0, above=0, most=8)
    """Bytes a weight, scales of its group included."""
    kv_bytes: float = leaf(2.0, above=0, most=8)
    """Bytes a key or value number."""
    compute: NumberFormat = "bf16"
    vocabulary_bytes: float | None = None
    """Of the embedding and the output matrix, where they are not held as other weights are."""

    @property
    def bytes_of_vocabulary(self) -> float:
        return self.weight_bytes if self.vocabulary_bytes is None else self.vocabulary_bytes


def precision_of(weights: WeightFormat, kv: KvFormat, ceilings: Ceilings) -> Precision:
    """Floats are multiplied as they are held; whole-number weights are widened to the best float the hardware has. Embedding
    and output matrix stay in 16 bits beside weights of 8 and fewer."""
    compute: NumberFormat
    if weights == "int8" or weights == "int4":
        compute = next(name for name in _WHOLE if getattr(ceilings.flops, name) > 0.0)
    else:
        compute = weights
    ceilings.flops_in(compute)
    return Precision(BYTES[weights], BYTES[kv], compute, BYTES["bf16"] if BYTES[weights] < BYTES["bf16"] else None)
