"""Sublayers of a model that several ranks compute together. They stand in for the plain ones once a model is built.

A matrix cut by columns gives each rank a part of a sum; what follows it must see the sum. Biases are added once, to the sum.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from penstock.runtime.layers.embedding import Embedding
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.quantized.packed import PackedMatrix
from penstock.runtime.models.spec import MoE
from penstock.runtime.ops.moe import Experts, mix_experts
from penstock.runtime.ops.parallel.collective import Peers, all_gather_columns, all_reduce, all_reduce_likeliest

AnyTable = Embedding | Linear | PackedMatrix


class SummedLinear(nn.Module):
    """Cut by columns: what every rank makes of its part of the inputs, summed."""

    def __init__(self, linear: nn.Module, peers: Peers) -> None:
        super().__init__()
        self.linear = linear
        bias = linear.bias
        self.bias = bias if isinstance(bias, nn.Parameter) else None
        linear.bias = None  # type: ignore[assignment]
        self._peers = peers

    def forward(self, x: Tensor) -> Tensor:
        total = all_reduce(self.linear(x), self._peers)
        return total if self.bias is None else total + self.bias


class VocabularyScores(nn.Module):
    """An output matrix cut by tokens: scores of all of them, put side by side."""

    def __init__(self, table: AnyTable, held: range, widths: tuple[int, ...], peers: Peers) -> None:
        super().__init__()
        self.table = table
        self.held = held
        self._widths = widths
        self._peers = peers

    def scores(self, hidden: Tensor) -> Tensor:
        return all_gather_columns(self.table.scores(hidden), self._peers, self._widths)

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token after each hidden state, and whether its scores are finite; no rank sees all scores."""
        return all_reduce_likeliest(self.table.scores(hidden), self.held.start, self._peers)


class VocabularyEmbedding(VocabularyScores):
    """An embedding cut by tokens: each rank gives the rows it has, and the sum is what was looked up."""

    def forward(self, ids: Tensor) -> Tensor:
        own = ids - self.held.start
        is_own = (own >= 0) & (own < len(self.held))
        rows = self.table(own.clamp(0, len(self.held) - 1))
        return all_reduce(rows * is_own.unsqueeze(-1).to(rows.dtype), self._peers)

    @property
    def device(self) -> torch.device:
        return self.table.device  # type: ignore[return-value]

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype  # type: ignore[return-value]


class DealtExperts:
    """In place of `mix_experts`: each rank computes what its own experts make of the tokens, and the sum is the mixture."""

    def __init__(self, spec: MoE, held: range, peers: Peers) -> None:
        self.held = held
        self.own_spec = replace(spec, num_experts=len(held))
        self._peers = peers

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
        own = chosen - self.held.start
        is_own = (own >= 0) & (own < len(self.held))
        mixed = mix_experts(x, weights * is_own, own * is_own, experts, self.own_spec)
        return all_reduce(mixed, self._peers)


class NormedProjection(nn.Module):
    """A projection whose q and k are normed over all heads (OLMo-2), of which a rank has some.

    `copies` ranks hold the same keys.
    """

    def __init__(
        self, linear: nn.Module, norms: tuple[RMSNorm, RMSNorm], sizes: tuple[int, int], copies: int, peers: Peers
    ) -> None:
        super().__init__()
        self.linear = linear
        self.q_norm, self.k_norm = norms
        self.sizes = sizes
        """Numbers of q and of k, over all ranks."""
        self._copies = copies
        self._peers = peers

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.linear(x)
        own = [len(self.q_norm.weight), len(self.k_norm.weight)]
        q, k, v = qkv.split([*own, qkv.shape[1] - sum(own)], dim=1)
        squares = torch.stack([part.float().square().sum(1) for part in (q, k)], dim=1)
        all_reduce(squares, self._peers)
        means = squares / torch.tensor([self.sizes[0], self.sizes[1] * self._copies], device=x.device)
        normed = [
            (part.float() * torch.rsqrt(means[:, [place]] + norm.eps) * norm.weight).to(x.dtype)
            for place, (part, norm) in enumerate(((q, self.q_norm), (k, self.k_norm)))
        ]
        return torch.cat((*normed, v), dim=1)


class StageInput(nn.Module):
    """Stands where a later stage of a pipeline has no embedding: gives the hidden states that the stage before it sent."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.device = device
        self.dtype = dtype
        self.received: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        if self.received is None or len(self.received) != len(ids):
            raise RuntimeError("a stage was run before its input came")
        return self.received
