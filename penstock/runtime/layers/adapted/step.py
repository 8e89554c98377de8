"""What adapted sublayers are told of a step."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from penstock.runtime.ops.grouped.lora import TokenTiles


class TokenSlots(NamedTuple):
    """Adapters of some tokens: the tokens in their order, and [tokens] int32."""

    tiles: TokenTiles | None
    """What kernels read; none where the definition computes."""
    slots: Tensor


@dataclass(slots=True)
class AdapterStep:
    """What all adapted sublayers of a model are told of a step. `tokens` is None where no token has an adapter."""

    tokens: TokenSlots | None = None
