"""One model, many spellings: configs as they were published, and as newer tools write them, give the same spec."""

from typing import Any

import pytest

from penstock.runtime.models import catalog
from penstock.runtime.models.registry import read_config
from penstock.runtime.models.spec import LongRopeScaling, YarnScaling

YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
LLAMA_3_1 = catalog.CONFIGS["llama-3.1-8b"]["rope_scaling"]


def without(name: str, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in catalog.CONFIGS[name].items() if key not in fields}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "llama-3.1-8b",
            without("llama-3.1-8b", "rope_theta", "rope_scaling")
            | {"rope_parameters": LLAMA_3_1 | {"rope_theta": 500_000.0}, "head_dim": 128},
        ),
        (
            "gemma-3-4b",
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "model_type": "gemma3",
                "text_config": {
                    "hidden_size": 2560,
                    "intermediate_size": 10_240,
                    "model_type": "gemma3_text",
                    "num_hidden_layers": 34,
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024,
                },
                "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
            },
        ),
        (
            "gemma-3-270m",
            without("gemma-3-270m")
            | {"rope_local_base_freq": 10_000.0, "rope_theta": 1_000_000.0, "_sliding_window_pattern": 6}
            | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3},
        ),
        (
            "gpt-oss-20b",
            without("gpt-oss-20b")
            | {"architectures": ["GptOssForCausalLM"], "rope_scaling": YARN | {"rope_type": "yarn"}}
            | {"rope_theta": 150_000, "swiglu_limit": 7.0, "experts_per_token": 4, "attention_bias": True}
            | {"layer_types": ["sliding_attention", "full_attention"] * 12, "initial_context_length": 4096}
            | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
        ),
        (
            "phi-4-mini",
            without("phi-4-mini")
            | {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
        ),
        (
            "gpt2",
            without("gpt2") | {"architectures": ["GPT2LMHeadModel"], "n_ctx": 1024, "activation_function": "gelu_new"},
        ),
        ("mistral-7b", without("mistral-7b", "sliding_window") | {"torch_dtype": "bfloat16"}),
        ("qwen3-30b-a3b", without("qwen3-30b-a3b") | {"mlp_only_layers": [], "max_window_layers": 48}),
    ],
)
def test_the_same_spec(name: str, config: dict[str, Any]) -> None:
    assert read_config(config).spec == catalog.find(name)


def test_the_long_context_of_qwen_is_its_own_times_the_factor() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32_768, "type": "yarn"}
    spec = read_config(catalog.CONFIGS["qwen2.5-7b"] | {"rope_scaling": scaling}).spec
    assert spec.max_context == 131_072
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert isinstance(rope.scaling, YarnScaling)
    assert rope.scaling.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_the_first_name_of_long_rope() -> None:
    factors = {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = catalog.CONFIGS["phi-3-mini"] | {"rope_scaling": factors, "max_position_embeddings": 131_072}
    rope = read_config(config | {"original_max_position_embeddings": 4096}).spec.layers[0].attention.rope
    assert rope is not None
    assert rope.scaling == LongRopeScaling((1.0,) * 48, (2.0,) * 48, 4096, pytest.approx(1.190238118171692))
