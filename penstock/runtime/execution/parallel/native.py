"""A rank's part of a native decoder: packed weights of its own heads, columns, tokens and layers, and one native call a step.

It stands where a decoder stands, and takes hidden states over and passes them on by itself where it is a stage of a pipeline.
The library adds up what ranks have parts of by calling back; a rank that is lost meanwhile ends the step.
"""

import ctypes
from dataclasses import replace

import torch
from torch import Tensor

from penstock.errors import RankLostError
from penstock.runtime.execution.load.parameters import check_all_used
from penstock.runtime.execution.native.adapters import NativeBank
from penstock.runtime.execution.native.decoder import NativeDecoder, NativeWeights
from penstock.runtime.execution.native.load import fill_native, packing_library
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.step import Step
from penstock.runtime.models.sharding import ModelShard, shard_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes, sources
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.parallel.collective import all_gather_columns, all_reduce_likeliest

SUMMED_BIASES = ("attention.out.bias", "mlp.down.bias")
"""Added once to a sum: by the first of the ranks that have parts of it."""


def load_native_part(
    shard: ModelShard, recipes: Recipes, checkpoint: Checkpoint, num_threads: int
) -> "NativePart | None":
    """None where a single process would not compute so either: the torch decoder serves all."""
    own = shard_recipes(recipes, shard)
    library = packing_library(shard.spec, own, checkpoint, num_threads)
    if library is None:
        return None
    used = {name for recipe in recipes.values() for name in sources(recipe)}
    check_all_used(checkpoint.names, used, shard.whole)
    weights = fill_native(own, checkpoint, shard.spec)
    if shard.place.tensor_index:
        vectors = {name: each for name, each in weights.vectors.items() if not name.endswith(SUMMED_BIASES)}
        weights = NativeWeights(weights.matrices, vectors)
    return NativePart(NativeDecoder(shard.spec, weights, library), shard)


class NativePart:
    """It computes nothing until it has joined the others."""

    device = torch.device("cpu")
    cache_dtype = NativeDecoder.cache_dtype

    def __init__(self, decoder: NativeDecoder, shard: ModelShard) -> None:
        self.spec: ModelSpec = replace(shard.spec, vocab_size=shard.whole.vocab_size)
        self.decoder = decoder
        self.parameters = decoder.parameters
        self.shard = shard
        ranks = shard.place.ranks
        self._widths = tuple(len(ranks.place(i).vocabulary(shard.whole.vocab_size)) for i in range(ranks.tensor))
        self._world: World | None = None
        self._fault: Exception | None = None
        """What went wrong while ranks added up; the native step has gone on without them."""
        self._add_up = native.ADD_UP(self._added)
        self._bank: NativeBank | None = None
        self._adapted = AdapterStep()

    def join(self, world: World) -> "NativePart":
        self._world = world
        return self

    @property
    def world(self) -> World:
        if self._world is None:
            raise RankLostError("this part has not joined the others")
        return self._world

    def adapt(self, bank: NativeBank, step: AdapterStep) -> None:
        """Tokens may have adapters from now on; `step` says which."""
        self._bank, self._adapted = bank, step

    def __call__(self, token_ids: Tensor, step: Step) -> Tensor:
        """The last stage's are the final hidden states; others' are what it was given."""
        world, place = self.world, self.shard.place
        received: Tensor | None = None
        if not place.is_first_stage:
            received = world.recv((len(token_ids), self.spec.hidden_size), torch.float32)
        sharing = native.Sharing(
            self._add_up if world.tensor.count > 1 else native.ADD_UP(),
            None if received is None else received.data_ptr(),
            self.shard.vocabulary.start,
        )
        bank, tokens, adaptation = self._bank, self._adapted.tokens, None
        if bank is not None and tokens is not None:
            addresses = bank.addresses[tokens.slots.numpy()]  # the name keeps them alive
            adaptation = native.Adaptation(addresses.ctypes.data, bank.shrunk_size)
        hidden = self.decoder(token_ids, step, sharing, adaptation)
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if not place.is_last_stage:
            world.send(hidden)
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        return all_gather_columns(self._own_scores(hidden), self.world.tensor, self._widths)

    def _own_scores(self, hidden: Tensor) -> Tensor:
        scores, tokens = self.decoder.scores(hidden), self._adapted.tokens
        return scores if self._bank is None or tokens is None else self._bank.adapt_scores(scores, hidden, tokens.slots)

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token after each hidden state, and whether its scores are finite; no rank sees all scores."""
        return all_reduce_likeliest(self._own_scores(hidden), self.shard.vocabulary.start, self.world.tensor)

    def _added(self, numbers: int, count: int) -> int:
        """Called by the library in the middle of a step. Nothing may be raised through it."""
        try:
            values = (ctypes.c_float * count).from_address(numbers)
            self.world.tensor.all_reduce(torch.frombuffer(values, dtype=torch.float32))
        except Exception as error:
            self._fault = error
            return 1
        return 0
