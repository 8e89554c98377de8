"""What adapted sublayers are told of a step."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from penstock.runtime.ops.moe import Groups


class TokenSlots(NamedTuple):
    """Adapters of some tokens: [tokens] int32, and the tokens in their order."""

    slots: Tensor
    groups: Groups | None
    """What kernels read; none where the definition computes."""


@dataclass(slots=True)
class AdapterStep:
    """What all adapted sublayers of a model are told of a step. `tokens` is None where no token has an adapter."""

    tokens: TokenSlots | None = None
