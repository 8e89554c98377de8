"""An EAGLE head: one decoder layer that foretells the target's next hidden state from the one before and the token drawn there.

    pair p:  embedding of token p, state of p - 1  ->  fc  ->  layer  ->  state of p, predicted  ->  token p + 1

Of pairs that are true the keys and values are kept, by generation. Guesses go on from the last of them with states that are
predicted themselves; what those leave is written over. Nothing is normed behind the layer: the target's states are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.execution.heads.pairs import Foretold, PairHeads
from penstock.runtime.execution.heads.states import StateSource
from penstock.runtime.execution.heads.target import Chooser, HeadTarget, Projection

FIRST_ROOM = 256
MAX_READ_AHEAD = 1 << 23
"""Numbers kept of what tokens add to the stream, 32 MiB."""


@dataclass(frozen=True, slots=True)
class EagleShape:
    """What config.json says of the layer, in its words."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class EagleParts:
    fc_token: Projection
    """The half of `fc` that reads embeddings; the other half, with its bias, reads states."""
    fc_state: Projection
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    mlp_norm: Tensor
    attention_norm: Tensor | None = None
    """Absent in the published layout."""


class EagleLayer:
    """The layer without its attention: used by guesses, one row after another, and by training, many sequences at once."""

    def __init__(self, shape: EagleShape, parts: EagleParts) -> None:
        self.shape = shape
        self._parts = parts

    def read_tokens(self, embeddings: Tensor) -> Tensor:
        """What a token adds to the stream, whatever the state before it."""
        return self._parts.fc_token(embeddings)

    def enter(self, tokens_read: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The stream, and queries, keys and values [..., qkv_size] not yet rotated."""
        stream = tokens_read + self._parts.fc_state(states)
        norm = self._parts.attention_norm
        return stream, self._parts.qkv(stream if norm is None else self._norm(stream, norm))

    def leave(self, stream: Tensor, attended: Tensor) -> Tensor:
        """States predicted."""
        stream = stream + self._parts.out(attended)
        gates, ups = self._parts.gate_up(self._norm(stream, self._parts.mlp_norm)).chunk(2, -1)
        return stream + self._parts.down(functional.silu(gates) * ups)

    def split(self, qkv: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [.., rows, heads, dim], keys and values [.., rows, kv_heads, dim]; queries and keys rotated."""
        shape = self.shape
        heads = qkv.view(*qkv.shape[:-1], -1, shape.head_dim)
        turned = rotate(heads[..., : shape.num_heads + shape.num_kv_heads, :], angles)
        return (
            turned[..., : shape.num_heads, :],
            turned[..., shape.num_heads :, :],
            heads[..., shape.num_heads + shape.num_kv_heads :, :],
        )

    def angles(self, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines [positions, 1, dim]."""
        half = torch.arange(0, self.shape.head_dim, 2, device=device, dtype=torch.float32) / self.shape.head_dim
        turns = torch.arange(num_positions, device=device)[:, None] * self.shape.rope_theta**-half
        doubled = torch.cat((turns, turns), -1)[:, None]
        return doubled.cos(), doubled.sin()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * angles[0] + torch.cat((-second, first), -1) * angles[1]


class PairCache:
    """Keys and values of one generation's pairs; `end` is the position of the first pair that is not there."""

    def __init__(self, shape: EagleShape, begin: int, device: torch.device) -> None:
        self._numbers = torch.empty((2, shape.num_kv_heads, FIRST_ROOM, shape.head_dim), device=device)
        self.begin = self.end = begin

    def put(self, position: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Lay pairs down from a position on and return all up to them, [kv_heads, pairs, dim]."""
        place = position - self.begin
        stop = place + len(keys)
        if stop > self._numbers.shape[2]:
            self._numbers = torch.cat((self._numbers, torch.empty_like(self._numbers)), 2)
            return self.put(position, keys, values)
        self._numbers[0, :, place:stop] = keys.transpose(0, 1)
        self._numbers[1, :, place:stop] = values.transpose(0, 1)
        return self._numbers[0, :, :stop], self._numbers[1, :, :stop]

    def forget_half(self) -> None:
        dropped = (self.end - self.begin) // 2
        self._numbers = self._numbers[:, :, dropped:].clone()
        self.begin += dropped


class EagleHeads(PairHeads[PairCache]):
    name = "eagle"
    most = 16
    """Guesses in a row that are worth asking for."""

    def __init__(
        self, layer: EagleLayer, target: HeadTarget, choose: Chooser, token_ids: list[int] | None, store: StateSource
    ) -> None:
        super().__init__(choose, token_ids, store)
        self._layer = layer
        self._target = target
        self._angles = layer.angles(FIRST_ROOM, target.device)
        self._row_of = {token: row for row, token in enumerate(token_ids or ())}
        self._read = self._read_ahead(token_ids)
        """What each token of the draft vocabulary adds to the stream; None where that would take much memory."""

    def _open(self, begin: int) -> PairCache:
        return PairCache(self._layer.shape, begin, self._target.device)

    def _compute(self, cache: PairCache, tokens: Sequence[int], states: Tensor, ahead: int) -> Foretold:
        position = cache.end + ahead
        stream, qkv = self._layer.enter(self._read_tokens(tokens), states)
        queries, keys, values = self._layer.split(qkv, self._angles_at(position, len(states)))
        keys, values = cache.put(position, keys, values)
        state = self._layer.leave(stream[-1:], self._attend(queries[-1:], keys, values))
        return Foretold(state, state)

    def _read_tokens(self, tokens: Sequence[int]) -> Tensor:
        if self._read is not None and len(tokens) == 1 and (row := self._row_of.get(tokens[0])) is not None:
            return self._read[row : row + 1]
        return self._layer.read_tokens(self._target.embed(torch.tensor(tokens, device=self._target.device)))

    @torch.inference_mode()
    def _read_ahead(self, token_ids: list[int] | None) -> Tensor | None:
        if token_ids is None or len(token_ids) * self._layer.shape.hidden_size > MAX_READ_AHEAD:
            return None
        self._read = None
        runs = [token_ids[first : first + FIRST_ROOM] for first in range(0, len(token_ids), FIRST_ROOM)]
        return torch.cat([self._read_tokens(run) for run in runs])

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The last pair attends to all: of others only keys and values are needed, since there is one layer."""
        shape = self._layer.shape
        grouped = queries.view(shape.num_kv_heads, -1, shape.head_dim)
        scores = torch.matmul(grouped, keys.transpose(1, 2)).mul_(shape.head_dim**-0.5)
        return torch.matmul(scores.softmax(-1), values).view(1, -1)

    def _angles_at(self, position: int, count: int) -> tuple[Tensor, Tensor]:
        cosines, sines = self._angles
        if position + count > len(cosines):
            self._angles = cosines, sines = self._layer.angles(2 * (position + count), cosines.device)
        return cosines[position : position + count], sines[position : position + count]
