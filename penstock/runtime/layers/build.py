"""From a spec to modules, one per part, with parameters that have a shape, a type and no numbers yet."""

import torch

from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.embedding import Embedding
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.layers.kinds.parts import build_mixer
from penstock.runtime.layers.layer import AnyLayer, AnyMLP, ResidualLayer, StreamLayer
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated, Ungated
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.norm import AnyNorm, NoNorm, make_norm
from penstock.runtime.layers.trunk import TrunkParts
from penstock.runtime.models.spec import MLP, NO_MLP, NORM_NAMES, GatedMLP, ModelSpec, PlainMLP


def build_model(spec: ModelSpec, dtype: torch.dtype) -> Decoder | Encoder:
    """A decoder if the spec generates, else an encoder."""
    return build_decoder(spec, dtype) if spec.generates else Encoder(spec, _parts(spec, dtype))


def build_decoder(spec: ModelSpec, dtype: torch.dtype) -> Decoder:
    output = None if spec.tied_embedding else Linear(spec.hidden_size, spec.vocab_size, False, dtype)
    return Decoder(spec, _parts(spec, dtype), output)


def _parts(spec: ModelSpec, dtype: torch.dtype) -> TrunkParts:
    def table(num_rows: int) -> Embedding | None:
        return Embedding(num_rows, spec.hidden_size, dtype) if num_rows else None

    has_final_norm = spec.layers[-1].norms != "residual"
    return TrunkParts(
        embedding=Embedding(spec.vocab_size, spec.hidden_size, dtype, spec.embedding_scale),
        positions=table(spec.learned_positions),
        token_types=table(spec.token_types),
        embedding_norm=make_norm(spec.norm, spec.hidden_size) if spec.embedding_norm else NoNorm(),
        layers=[build_layer(spec, number, dtype) for number in range(spec.num_layers)],
        norm=make_norm(spec.norm, spec.hidden_size) if has_final_norm else NoNorm(),
    )


def build_layer(spec: ModelSpec, number: int, dtype: torch.dtype) -> AnyLayer:
    layer = spec.layers[number]
    placed = set(NORM_NAMES[layer.norms]) - ({"mlp_norm"} if layer.mlp == NO_MLP else set())
    norms: dict[str, AnyNorm] = {
        name: make_norm(spec.norm, spec.hidden_size) if name in placed else NoNorm() for name in NORM_NAMES["sandwich"]
    }
    attention = build_mixer(spec, number, dtype)
    if layer.norms == "residual":
        return ResidualLayer(attention, _mlp(layer.mlp, spec.hidden_size, dtype), norms)
    mlp = None if layer.mlp == NO_MLP else _mlp(layer.mlp, spec.hidden_size, dtype)
    return StreamLayer(attention, mlp, norms, layer.residual_scale)


def _mlp(mlp: MLP, hidden_size: int, dtype: torch.dtype) -> AnyMLP:
    match mlp:
        case GatedMLP():
            return Gated(mlp, hidden_size, dtype)
        case PlainMLP():
            return Ungated(mlp, hidden_size, dtype)
        case _:
            return MixtureOfExperts(mlp, hidden_size, dtype)
