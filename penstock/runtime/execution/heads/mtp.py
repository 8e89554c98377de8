"""A multi-token-prediction layer (DeepSeek V3): a layer like the model's own, behind its last, foretells one token further.

    norms of token p's embedding and of the state of p - 1  ->  join  ->  layer  ->  state of p, predicted  ->  norm  ->  token

Its weights lie in the model's checkpoint. Deeper guesses use the layer again, on what it predicted itself.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from penstock.runtime.execution.heads.pairs import MAX_KEPT, Foretold, PairHeads
from penstock.runtime.execution.heads.states import KEPT, StateSource
from penstock.runtime.execution.heads.target import HeadTarget
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import fill_parameter
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.layers.build import build_layer
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import make_norm
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes
from penstock.runtime.ops.layout import BatchLayout

BLOCK_SIZE = 16
MOST = 4
"""Guesses in a row: the layer was trained for one, and each further reads its own."""
NUM_GENERATIONS = 16
"""Whose pairs are kept, those that began last: with more of them a step is full without guesses."""
BLOCKS_EACH = -(-(MAX_KEPT + KEPT + MOST) // BLOCK_SIZE)


class MtpLayer(nn.Module):
    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        """`spec` has the one layer."""
        super().__init__()
        self.token_norm = make_norm(spec.norm, spec.hidden_size)
        self.state_norm = make_norm(spec.norm, spec.hidden_size)
        self.join = Linear(2 * spec.hidden_size, spec.hidden_size, False, dtype)
        self.layer = build_layer(spec, 0, dtype)
        self.norm = make_norm(spec.norm, spec.hidden_size)

    def forward(self, embeddings: Tensor, states: Tensor, step: Step) -> Foretold:
        stream = self.join(torch.cat((self.token_norm(embeddings), self.state_norm(states)), -1))
        x, stream = self.layer(None, stream, step)
        chosen_by = self.norm(stream) if x is None else self.norm.add(x, stream)
        return Foretold(stream[-1:], chosen_by[-1:])


def mtp_spec(spec: ModelSpec) -> ModelSpec:
    """The layer alone; it is made like the model's last."""
    return replace(spec, layers=spec.layers[-1:])


def load_mtp(model: Decoder, recipes: Recipes, checkpoint: Checkpoint) -> MtpLayer:
    """Beside the model, in its numbers' type."""
    layer = MtpLayer(mtp_spec(model.spec), model.cache_dtype)
    for name, _ in list(layer.named_parameters()):
        fill_parameter(layer, name, recipes[name], checkpoint, model.device)
    return layer.eval()


class LayerPairs:
    """One generation's blocks, in the order of its pairs."""

    def __init__(self, begin: int, blocks: Tensor) -> None:
        self.begin = self.end = begin
        self.blocks = blocks

    def forget_half(self) -> None:
        dropped = (self.end - self.begin) // 2 // BLOCK_SIZE
        self.blocks = self.blocks.roll(-dropped)
        self.begin += dropped * BLOCK_SIZE


class MtpHeads(PairHeads[LayerPairs]):
    name = "mtp"
    most = MOST

    def __init__(self, layer: MtpLayer, spec: ModelSpec, target: HeadTarget, store: StateSource) -> None:
        super().__init__(target.chooser(None), None, store)
        self._layer = layer
        self._target = target
        self._dtype = layer.join.weight.dtype
        blocks = torch.arange(NUM_GENERATIONS * BLOCKS_EACH, dtype=torch.int32, device=target.device)
        self._cache = KVCache(mtp_spec(spec), len(blocks), BLOCK_SIZE, self._dtype, target.device)
        self._rotations = Rotations(mtp_spec(spec), spec.max_context + MOST, target.device)
        self._free = list(blocks.split(BLOCKS_EACH))  # type: ignore[no-untyped-call]

    def forget(self, key: tuple[int, int]) -> None:
        if (pairs := self._caches.pop(key, None)) is not None:
            self._free.append(pairs.blocks)

    def _open(self, begin: int) -> LayerPairs:
        if not self._free:
            self.forget(next(iter(self._caches)))
        return LayerPairs(begin, self._free.pop())

    def _compute(self, cache: LayerPairs, tokens: Sequence[int], states: Tensor, ahead: int) -> Foretold:
        device, position = self._target.device, cache.end + ahead
        embeddings = self._target.embed(torch.tensor(tokens, device=device))
        angles = self._rotations.at(torch.arange(position, position + len(states), device=device))
        step = Step(_layout(cache.blocks, position - cache.begin, len(states)), angles, self._cache.layers)
        found: Foretold = self._layer(embeddings.to(self._dtype), states.to(self._dtype), step)
        return found


def _layout(blocks: Tensor, start: int, length: int) -> BatchLayout:
    """One chunk of pairs, by their places in a generation's blocks."""
    stop, device = start + length, blocks.device
    places = torch.arange(start, stop, device=device)
    return BatchLayout(
        positions=places,
        slots=blocks[places // BLOCK_SIZE].long() * BLOCK_SIZE + places % BLOCK_SIZE,
        block_tables=blocks[None, : -(-stop // BLOCK_SIZE)],
        query_starts=torch.tensor([0, length], dtype=torch.int32, device=device),
        context_lengths=torch.tensor([stop], dtype=torch.int32, device=device),
        lengths=[length],
        contexts=[stop],
    )
