"""Multi-head latent attention (DeepSeek): queries absorb what makes keys of latents, outputs what makes values of them."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import MLA, ModelSpec
from penstock.runtime.ops.kinds.latent import LatentPlaces, latent_attention, place_latents


class LatentAttention(nn.Module):
    """`q_a`, `q_b` make queries by way of a latent, `q` at once; `kv_a` makes what is cached, `kv_b` keys and values of it."""

    def __init__(self, part: MLA, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        hidden_size, eps = model.hidden_size, model.norm.eps
        self.spec = part
        self.number = number
        self.table = model.cache_layout().table(number)
        if part.q_rank is None:
            self.q = Linear(hidden_size, part.q_size, False, dtype)
        else:
            self.q_a = Linear(hidden_size, part.q_rank, part.bias, dtype)
            self.q_a_norm = RMSNorm(part.q_rank, eps)
            self.q_b = Linear(part.q_rank, part.q_size, False, dtype)
        self.kv_a = Linear(hidden_size, part.kv_rank + part.rope.dim, part.bias, dtype)
        self.kv_a_norm = RMSNorm(part.kv_rank, eps)
        self.kv_b = Linear(part.kv_rank, part.num_heads * (part.plain_dim + part.value_dim), False, dtype)
        self.out = Linear(part.num_heads * part.value_dim, hidden_size, part.bias, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        spec, angles, layout = self.spec, step.angles[self.number], step.layout_of(self.table)
        if angles is None:
            raise RuntimeError("latent attention rotates a part of its keys")
        cache = step.caches[self.number]
        queries = self._queries(x).view(-1, spec.num_heads, spec.plain_dim + spec.rope.dim)
        made = self.kv_b.weight.view(spec.num_heads, -1, spec.kv_rank)
        to_keys, to_values = made[:, : spec.plain_dim], made[:, spec.plain_dim :]
        q = x.new_empty((len(x), spec.num_heads, spec.kv_rank + spec.rope.dim))
        _multiply_heads(queries[..., : spec.plain_dim], to_keys, q[..., : spec.kv_rank])
        places = LatentPlaces(self.kv_a_norm.weight, self.kv_a_norm.eps, angles, layout.slots)
        place_latents(q, self.kv_a(x), queries, places, cache, spec)
        seen = latent_attention(q, cache, layout, spec)
        values = x.new_empty((len(x), spec.num_heads, spec.value_dim))
        _multiply_heads(seen, to_values.mT, values)
        return self.out(values.flatten(1))  # type: ignore[no-any-return]

    def _queries(self, x: Tensor) -> Tensor:
        if self.spec.q_rank is None:
            return self.q(x)  # type: ignore[no-any-return]
        return self.q_b(self.q_a_norm(self.q_a(x)))  # type: ignore[no-any-return]


def _multiply_heads(x: Tensor, matrices: Tensor, out: Tensor) -> None:
    """x [tokens, heads, in] by each head's matrix [heads, in, out]; laid down where it is needed, without a copy."""
    torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))
