"""One transformer layer: two sublayers and their norms, wherever the architecture places them."""

from torch import Tensor, nn

from penstock.runtime.layers.mlp import Gated, Ungated
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.norm import AnyNorm
from penstock.runtime.layers.step import Step

AnyMLP = Gated | Ungated | MixtureOfExperts


class StreamLayer(nn.Module):
    """Sublayers that each read the residual stream and add to it (placements pre, post and sandwich); an MLP may be absent.

    A sublayer's output is handed on as `x`, not yet added, so that adding it and norming the sum are one operation. The
    stream is written in place.
    """

    def __init__(
        self, attention: nn.Module, mlp: AnyMLP | None, norms: dict[str, AnyNorm], residual_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.residual_scale = residual_scale
        self.attention_norm, self.attention_post_norm = norms["attention_norm"], norms["attention_post_norm"]
        self.mlp_norm, self.mlp_post_norm = norms["mlp_norm"], norms["mlp_post_norm"]

    def forward(self, x: Tensor | None, stream: Tensor, step: Step) -> tuple[Tensor | None, Tensor]:
        read = self.attention_norm(stream) if x is None else self.attention_norm.add(x, stream)
        x = self._scaled(self.attention_post_norm(self.attention(read, step)))
        if self.mlp is None:
            return x, stream
        read = self.mlp_norm.add(x, stream)
        return self._scaled(self.mlp_post_norm(self.mlp(read))), stream

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.residual_scale == 1.0 else x * self.residual_scale


class ResidualLayer(nn.Module):
    """Each sublayer's sum with its input is normed, and that norm is the stream from there on."""

    def __init__(self, attention: nn.Module, mlp: AnyMLP, norms: dict[str, AnyNorm]) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.attention_norm, self.mlp_norm = norms["attention_norm"], norms["mlp_norm"]

    def forward(self, x: Tensor | None, stream: Tensor, step: Step) -> tuple[Tensor | None, Tensor]:
        stream = self.attention_norm.add(self.attention(stream, step), stream)
        return None, self.mlp_norm.add(self.mlp(stream), stream)


AnyLayer = StreamLayer | ResidualLayer
