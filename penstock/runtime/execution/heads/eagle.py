"""An EAGLE head: one decoder layer that foretells the target's next hidden state from the one before and the token drawn there.

    pair p:  embedding of token p, state of p - 1  ->  fc  ->  layer  ->  state of p, foretold  ->  token p + 1

Of pairs that are true the keys and values are kept, by generation. Guesses go on from the last of them with states that are
foretold themselves; what those leave is written over. Nothing is normed behind the layer: the target's states are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.execution.heads.states import StateSource
from penstock.runtime.execution.heads.target import Chooser, HeadTarget, Projection

FIRST_ROOM = 256
MAX_KEPT = 2048
"""Pairs of a generation that are attended to; of more the older half is forgotten."""


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
        """States foretold."""
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


class EagleHeads:
    """Guesses for rows, by states that a runner left in the store."""

    name = "eagle"
    most = 16
    """Guesses in a row that are worth asking for."""

    def __init__(
        self, layer: EagleLayer, target: HeadTarget, choose: Chooser, token_ids: list[int] | None, store: StateSource
    ) -> None:
        """`choose` gives places among `token_ids`, or tokens themselves where that is none."""
        self._layer = layer
        self._target = target
        self._choose = choose
        self._token_ids = token_ids
        self._store = store
        self._caches: dict[tuple[int, int], PairCache] = {}
        self._angles = layer.angles(FIRST_ROOM, target.device)
        self._read = self._read_ahead()
        """What each token of the draft vocabulary adds to the stream; None where that would take much memory."""

    def forget(self, key: tuple[int, int]) -> None:
        self._caches.pop(key, None)

    @torch.inference_mode()
    def guess(self, key: tuple[int, int], row: int, tokens: Sequence[int], most: int) -> list[int]:
        """Up to so many tokens that may come next; none where the row's states are not there."""
        num_tokens = len(tokens)
        cache = self._caches.get(key)
        if cache is None or self._store.at(row, cache.end - 1, num_tokens - 1) is None:
            begin = self._store.begin(row)
            if begin is None or begin > num_tokens - 2:
                return []
            cache = self._caches[key] = PairCache(self._layer.shape, begin + 1, self._target.device)
        states = self._store.at(row, cache.end - 1, num_tokens - 1)
        if states is None or not len(states):
            return []
        state = self._compute(cache, self._read_tokens(tokens[cache.end :]), states)
        cache.end = num_tokens
        guesses: list[int] = []
        while True:
            place = self._choose(state)[0]
            if place < 0:
                break
            guesses.append(place if self._token_ids is None else self._token_ids[place])
            if len(guesses) == most:
                break
            read = self._read_tokens(guesses[-1:]) if self._read is None else self._read[place : place + 1]
            state = self._compute(cache, read, state, len(guesses) - 1)
        if cache.end - cache.begin > MAX_KEPT:
            cache.forget_half()
        return guesses

    def _read_tokens(self, tokens: Sequence[int]) -> Tensor:
        return self._layer.read_tokens(self._target.embed(torch.tensor(tokens, device=self._target.device)))

    @torch.inference_mode()
    def _read_ahead(self) -> Tensor | None:
        size = self._layer.shape.hidden_size
        if self._token_ids is None or len(self._token_ids) * size > MAX_READ_AHEAD:
            return None
        runs = [self._token_ids[first : first + FIRST_ROOM] for first in range(0, len(self._token_ids), FIRST_ROOM)]
        return torch.cat([self._read_tokens(run) for run in runs])

    def _compute(self, cache: PairCache, tokens_read: Tensor, states: Tensor, ahead: int = 0) -> Tensor:
        """Pairs from the cache's end, or so many behind it, on; the state foretold by the last, [1, hidden]."""
        position = cache.end + ahead
        stream, qkv = self._layer.enter(tokens_read, states)
        queries, keys, values = self._layer.split(qkv, self._angles_at(position, len(states)))
        keys, values = cache.put(position, keys, values)
        return self._layer.leave(stream[-1:], self._attend(queries[-1:], keys, values))

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
