"""DeepSeek is counted as published, read in every spelling, and refused by name where it would have to be computed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.main import main
from penstock.errors import ModelFileError
from penstock.runtime.models import catalog
from penstock.runtime.models.registry import read_gguf, read_spec
from penstock.runtime.models.spec import MLA, GatedMLP, MoE, YarnScaling
from tests.models.test_fields import values

V3 = catalog.CONFIGS["deepseek-v3"]


def test_counts_are_the_published_ones_by_arithmetic() -> None:
    spec = catalog.find("deepseek-v3")
    hidden, heads = 7168, 128
    attention = (
        hidden * 1536 + 1536 + 1536 * heads * 192 + hidden * 576 + 512 + 512 * heads * 256 + heads * 128 * hidden
    )
    expert = 3 * 2048 * hidden
    layers = 61 * (attention + 2 * hidden) + 3 * 3 * 18_432 * hidden
    routers = 58 * 256 * hidden
    total = 2 * 129_280 * hidden + hidden + layers + routers + 58 * 257 * expert
    active = 129_280 * hidden + hidden + layers + routers + 58 * 9 * expert
    assert (spec.num_parameters, spec.num_active_parameters) == (total, active)
    assert round(total / 1e9) == 671
    assert round(active / 1e9) == 37


def test_a_published_config_is_read_whole() -> None:
    """As it stands in the repository, with the fields that say how its weights are stored."""
    published = V3 | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "ep_size": 1,
    }
    spec = read_spec(published)
    assert spec == catalog.find("deepseek-v3") == read_spec(V3 | {"head_dim": 64})
    attention, mlp = spec.layers[3].attention, spec.layers[3].mlp
    assert isinstance(attention, MLA)
    assert isinstance(attention.rope.scaling, YarnScaling)
    assert attention.rope.scaling.attention_factor == 1.0
    assert attention.scale == pytest.approx(192**-0.5 * 1.3688879454**2)
    assert isinstance(mlp, MoE)
    assert (mlp.scores, mlp.scale, mlp.num_groups, mlp.num_active_groups) == ("sigmoid", 2.5, 8, 4)
    assert mlp.shared == GatedMLP(2048, "silu")
    assert [isinstance(layer.mlp, MoE) for layer in spec.layers] == [False] * 3 + [True] * 58
    assert spec.max_context == 163_840


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_lora_rank", 0),
        ("qk_rope_head_dim", 63),
        ("q_lora_rank", "many"),
        ("n_routed_experts", 2**20),
        ("num_experts_per_tok", 257),
        ("topk_method", "best"),
        ("topk_group", 9),
        ("scoring_func", "relu"),
        ("moe_layer_freq", 2),
        ("routed_scaling_factor", float("nan")),
    ],
)
def test_what_is_not_meant_so_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match="pairs" if field == "qk_rope_head_dim" else field):
        read_spec(V3 | {field: value})


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_config_is_read_or_refused(data: st.DataObject) -> None:
    config = json.loads(json.dumps(V3))
    for field in data.draw(st.lists(st.sampled_from(list(config)), min_size=1, max_size=3)):
        config[field] = data.draw(values)
    try:
        spec = read_spec(config)
    except ModelFileError:
        return
    assert spec.num_parameters > 0
    assert spec.kv_bytes_per_token(2) > 0


def test_what_is_not_read_is_refused_with_a_way_out() -> None:
    with pytest.raises(ModelFileError, match="safetensors"):
        read_gguf({"general.architecture": "deepseek2"}, ())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "deepseek-v3"), "all in a latent of 512 and a rotated key of 64"),
        (("simulate", "--model", "deepseek-v2-lite", "--num-requests", "5"), "TTFT"),
    ],
)
def test_it_is_shown_and_simulated(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert main(list(words)) == 0
    assert said in capsys.readouterr().out


def test_kimi_and_glm_have_the_same_blocks() -> None:
    """As their repositories have them: Kimi K2 names V3's class, GLM-4.7-Flash says layer by layer which are dense."""
    kimi = V3 | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 163_840,
        "routed_scaling_factor": 2.827,
    }
    spec = read_spec(kimi)
    assert spec == read_spec({name: value for name, value in kimi.items() if name != "architectures"})
    assert round(spec.num_parameters / 1e9) == 1026
    assert round(spec.num_active_parameters / 1e9) == 32
    glm = {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "vocab_size": 154_880,
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_shared_experts": 1,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "kv_lora_rank": 512,
        "q_lora_rank": 768,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "mlp_layer_types": ["dense"] + ["sparse"] * 46,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    }
    spec = read_spec(glm)
    assert [isinstance(layer.mlp, MoE) for layer in spec.layers] == [False] + [True] * 46
    mixture = spec.layers[1].mlp
    assert isinstance(mixture, MoE)
    assert (mixture.scores, mixture.normalize, mixture.scale) == ("sigmoid", True, 1.8)
    with pytest.raises(ModelFileError, match="mlp_layer_types"):
        read_spec(glm | {"mlp_layer_types": ["dense"] * 46 + ["odd"]})
