"""A rank's part of a model, made from outside: layers do not know that there are other ranks.

build     the modules of the rank's own spec, without what its stage or its experts leave out
join      once loaded (and quantized): what gives a part of a sum gives the sum, what has some tokens has all
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from penstock.runtime.execution.parallel.world import World
from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.build import build_decoder
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.layer import AnyLayer
from penstock.runtime.layers.moe import ExpertStack, MixtureOfExperts
from penstock.runtime.layers.norm import NoNorm
from penstock.runtime.layers.parallel import (
    DealtExperts,
    NormedProjection,
    StageInput,
    SummedLinear,
    VocabularyEmbedding,
    VocabularyScores,
)
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import GQA, only_gqa
from penstock.runtime.ops.parallel.collective import Peers


def build_shard(shard: ModelShard, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Parameters have no numbers yet."""
    model = build_decoder(shard.spec, dtype)
    place = shard.place
    if not place.is_first_stage:
        model.embedding = StageInput(device, dtype)  # type: ignore[assignment]
    if not place.is_last_stage:
        model.norm = NoNorm()
    for layer in model.layers:
        if isinstance(layer.mlp, MixtureOfExperts):
            mixture = layer.mlp
            fewer = replace(mixture.spec, num_experts=len(place.experts(mixture.spec)))
            mixture.experts = ExpertStack(fewer, shard.spec.hidden_size, dtype)
    return model


def join_shard(model: Decoder, shard: ModelShard, world: World) -> None:
    """In place. Afterwards the model's spec says what all ranks hold together of the vocabulary."""
    for number, layer in zip(shard.layers, cast(Iterable[AnyLayer], model.layers), strict=True):
        whole = shard.whole.layers[number]
        _join_attention(
            cast(Attention, layer.attention), only_gqa(whole.attention, "split over ranks"), shard, world.tensor
        )
        if isinstance(layer.mlp, MixtureOfExperts):
            _deal(layer.mlp, shard, world.stage)
        elif layer.mlp is not None:
            layer.mlp.register_module("down", SummedLinear(layer.mlp.get_submodule("down"), world.tensor))
    held = shard.vocabulary
    tensor = shard.place.ranks.tensor
    widths = tuple(len(shard.place.ranks.place(index).vocabulary(shard.whole.vocab_size)) for index in range(tensor))
    if shard.place.is_first_stage:
        model.embedding = VocabularyEmbedding(model.embedding, held, widths, world.tensor)  # type: ignore[assignment]
    if model.output is not None:
        model.output = VocabularyScores(model.output, held, widths, world.tensor)  # type: ignore[assignment]
    model.spec = replace(shard.spec, vocab_size=shard.whole.vocab_size)


def _join_attention(attention: Attention, whole: GQA, shard: ModelShard, peers: Peers) -> None:
    attention.out = SummedLinear(attention.out, peers)  # type: ignore[assignment]
    if whole.qk_norm == "full":
        copies = max(1, shard.place.ranks.tensor // whole.num_kv_heads)
        norms = attention.q_norm, attention.k_norm
        attention.qkv = NormedProjection(attention.qkv, norms, (whole.q_size, whole.kv_size), copies, peers)  # type: ignore[assignment]
        del attention.q_norm, attention.k_norm
        attention.spec = replace(attention.spec, qk_norm=None)


def _deal(mixture: MixtureOfExperts, shard: ModelShard, peers: Peers) -> None:
    place = shard.place
    bias = mixture.experts.down.bias
    if place.slice_index and bias is not None:  # it is added once, by the rank of the first slice
        mixture.experts.down.bias = nn.Parameter(torch.zeros_like(bias), requires_grad=False)
    mixture.mix = DealtExperts(mixture.spec, place.experts(mixture.spec), peers)
