"""A built model has the parameters the spec counts, under the names recipes are written for, and no memory yet."""

import re

import pytest
import torch

from penstock.runtime.layers.build import build_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.models import weights
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, MoE, Norm, PlainMLP, Rope

ATTENTION = GQA(4, 2, 16, Rope(16), 0.25)
LAYERS = {
    "pre": Layer(ATTENTION, GatedMLP(48, "silu")),
    "post": Layer(GQA(4, 2, 16, Rope(16), 0.25, qk_norm="full"), GatedMLP(48, "silu"), "post"),
    "sandwich": Layer(GQA(4, 1, 16, Rope(16), 0.25, qk_norm="head"), GatedMLP(48, "gelu_tanh"), "sandwich"),
    "residual": Layer(ATTENTION, PlainMLP(48, "gelu", bias=True), "residual"),
    "sinks and biases": Layer(
        GQA(4, 2, 16, Rope(16), 0.25, qkv_bias=True, out_bias=True, sinks=True),
        MoE(4, 2, GatedMLP(24, "swiglu_clamped", bias=True), normalize=True, router_bias=True),
    ),
    "experts": Layer(ATTENTION, MoE(4, 2, GatedMLP(24, "silu"), normalize=False)),
}
DOCUMENTED = {name.replace("{i}", "0") for name in re.findall(r"[\w{}.]+\.(?:weight|sinks)\b", weights.__doc__ or "")}


def spec(layer: Layer, **changes: object) -> ModelSpec:
    plain = {"architecture": "any", "hidden_size": 32, "vocab_size": 60, "norm": Norm(), "max_context": 64}
    return ModelSpec(layers=(layer,), **(plain | changes))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embedding": True, "norm": Norm("layer"), "learned_positions": 64},
        {"pooling": "mean", "token_types": 2, "embedding_norm": True, "norm": Norm("layer")},
    ],
    ids=["decoder", "tied", "encoder"],
)
def test_parameters_are_those_of_the_spec(layer: Layer, changes: dict[str, object]) -> None:
    wanted = spec(layer, **changes)
    model = build_model(wanted, torch.bfloat16)
    assert isinstance(model, Decoder if wanted.generates else Encoder)
    parameters = dict(model.named_parameters())
    assert sum(parameter.numel() for parameter in parameters.values()) == wanted.num_parameters
    for name, parameter in parameters.items():
        assert parameter.is_meta
        assert not parameter.requires_grad
        is_wide = "norm" in name or name.endswith("sinks")
        assert parameter.dtype == (torch.float32 if is_wide else torch.bfloat16)
        assert re.sub(r"\.bias$", ".weight", name) in DOCUMENTED


def test_every_documented_name_is_some_parameter() -> None:
    built = set()
    for layer in LAYERS.values():
        for changes in ({}, {"pooling": "cls", "learned_positions": 8, "token_types": 2, "embedding_norm": True}):
            built |= dict(build_model(spec(layer, **changes), torch.float32).named_parameters()).keys()
    assert built >= DOCUMENTED
