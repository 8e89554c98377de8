"""An EAGLE head in training: all positions of many texts at once, and deeper guesses from the states it predicted itself.

Guess d at a position attends to the true pairs up to d - 1 places before it, and to the head's own guesses since, as it does
when serving. So the acceptance measured here on held-out texts is that of serving.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.runtime.execution.heads.eagle import EagleLayer, EagleParts, EagleShape
from penstock.runtime.execution.heads.target import HeadTarget
from penstock.runtime.train.examples import Padded

KeysValues = tuple[Tensor, Tensor]
SAMPLED_TOKENS = 16
"""Tokens whose embeddings are measured for their size."""


class Weight(nn.Module):
    """A trainable matrix."""

    def __init__(self, rows: int, columns: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * gain / math.sqrt(columns))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class EagleModule(nn.Module):
    def __init__(self, shape: EagleShape, target: HeadTarget) -> None:
        """At first, embeddings weigh as much as states, however small their numbers are."""
        super().__init__()
        size = shape.hidden_size
        self.shape = shape
        self._target = target
        embeddings = target.embed(torch.arange(SAMPLED_TOKENS, device=target.device))
        self.fc_token = Weight(size, size, 1.0 / float(embeddings.square().mean().sqrt()))
        self.fc_state = Weight(size, size)
        self.qkv = Weight(shape.qkv_size, size)
        self.out = Weight(size, size, 0.1)
        self.gate_up = Weight(2 * shape.intermediate_size, size)
        self.down = Weight(size, shape.intermediate_size, 0.1)
        self.mlp_norm = nn.Parameter(torch.ones(size))
        self.attention_norm = nn.Parameter(torch.ones(size))
        with torch.no_grad():
            self.fc_state.weight.copy_(torch.eye(size))  # at first the state before is predicted
        projections = self.fc_token, self.fc_state, self.qkv, self.out, self.gate_up, self.down
        parts = EagleParts(*projections, self.mlp_norm, self.attention_norm)
        self.layer = EagleLayer(shape, parts)

    def predict(self, texts: Padded, depth: int) -> list[Tensor]:
        """Predicted states by guess, [texts, n - 1, hidden]: entry i, of pair i + 1, predicts the state of position i + 1."""
        embeddings = self._target.embed(texts.tokens[:, 1:].flatten()).view(
            len(texts.tokens), -1, self.shape.hidden_size
        )
        tokens_read = self.layer.read_tokens(embeddings)
        states, angles = texts.states[:, :-1], self.layer.angles(texts.tokens.shape[1], texts.states.device)
        angles = angles[0][1:], angles[1][1:]
        kept: list[KeysValues] = []
        predicted: list[Tensor] = []
        for _ in range(depth):
            stream, qkv = self.layer.enter(tokens_read, states)
            queries, keys, values = self.layer.split(qkv, angles)
            kept.append((self._spread(keys), self._spread(values)))
            predicted.append(self.layer.leave(stream, attend(queries.transpose(1, 2), kept)))
            states = functional.pad(predicted[-1][:, :-1], (0, 0, 1, 0))
        return predicted

    def named_tensors(self) -> dict[str, Tensor]:
        """By their published names."""
        shape = self.shape
        kv_size = shape.num_kv_heads * shape.head_dim
        q, k, v = torch.split(self.qkv.weight, [shape.hidden_size, kv_size, kv_size])
        gate, up = self.gate_up.weight.chunk(2)
        return {
            "fc.weight": torch.cat((self.fc_token.weight, self.fc_state.weight), 1),
            **{f"layers.0.self_attn.{name}_proj.weight": each for name, each in zip("qkv", (q, k, v))},
            "layers.0.self_attn.o_proj.weight": self.out.weight,
            "layers.0.mlp.gate_proj.weight": gate,
            "layers.0.mlp.up_proj.weight": up,
            "layers.0.mlp.down_proj.weight": self.down.weight,
            "layers.0.input_layernorm.weight": self.attention_norm,
            "layers.0.post_attention_layernorm.weight": self.mlp_norm,
        }

    def _spread(self, heads: Tensor) -> Tensor:
        """Keys or values [texts, heads, n, dim], those of a group repeated for each of its queries."""
        return heads.transpose(1, 2).repeat_interleave(self.shape.num_heads // self.shape.num_kv_heads, 1)


def attend(queries: Tensor, kept: list[KeysValues]) -> Tensor:
    """`kept` has the true pairs first, then those of each guess up to this one; [texts, n, heads * dim] comes out."""
    keys, values = kept[0]
    num_ahead, length = len(kept) - 1, keys.shape[2]
    scale = keys.shape[-1] ** -0.5
    is_hidden = torch.ones((length, length), dtype=torch.bool, device=keys.device).triu(1 - num_ahead)
    scores = (queries @ keys.transpose(2, 3) * scale).masked_fill(is_hidden, -math.inf)
    own = [(shifted(k, num_ahead - e), shifted(v, num_ahead - e)) for e, (k, v) in enumerate(kept[1:], 1)]
    scores = torch.cat([scores, *((queries * k).sum(-1, keepdim=True) * scale for k, _ in own)], -1)
    chances = scores.softmax(-1)
    attended = chances[..., :length] @ values
    for place, (_, v) in enumerate(own):
        attended = attended + chances[..., length + place, None] * v
    return attended.transpose(1, 2).flatten(2)


def shifted(x: Tensor, count: int) -> Tensor:
    """[..., n, numbers] along positions: entry i is the former entry i - count."""
    return functional.pad(x[..., : x.shape[-2] - count, :], (0, 0, count, 0)) if count else x
