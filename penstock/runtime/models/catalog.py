"""Published shapes by short name, so that simulator and planner need no download.

Each is the part of its `config.json` that decides the spec, read by the architecture's own reader. Where a base and a chat
model differ (Qwen2.5's context), it is the chat model's.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.models.registry import BY_MODEL_TYPE
from penstock.runtime.models.spec import ModelSpec

Config = dict[str, Any]


def _config(model_type: str, vocabulary: int, hidden: int, width: int, layers: int, heads: str, **rest: Any) -> Config:
    """`heads` is query heads / key-value heads, and / numbers in a head where that is not an equal share."""
    counts = [int(count) for count in heads.split("/")]
    config: Config = {
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": counts[0],
        "num_key_value_heads": counts[1],
    }
    if len(counts) == 3:
        config["head_dim"] = counts[2]
    return config | rest


def _decoder(model_type: str, *shape: Any, context: int, theta: float, eps: float = 1e-5, **rest: Any) -> Config:
    sizes = {"max_position_embeddings": context, "rope_theta": theta, "rms_norm_eps": eps}
    return _config(model_type, *shape) | sizes | rest


def _llama(*shape: Any, context: int, theta: float = 10_000.0, **rest: Any) -> Config:
    return _decoder("llama", *shape, context=context, theta=theta, **rest)


def _llama4(experts: int, moe_step: int, context: int) -> Config:
    """The text part, as in the published config.json of Llama-4-Scout-17B-16E and Llama-4-Maverick-17B-128E."""
    shape = 202_048, 5120, 8192, 48, "40/8/128"
    return _decoder("llama4_text", *shape, context=context, theta=500_000.0) | {
        "intermediate_size_mlp": 16_384,
        "num_local_experts": experts,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": moe_step,
        "attention_chunk_size": 8192,
    }


def _qwen(model_type: str, *shape: Any, context: int, theta: float = 1e6, **rest: Any) -> Config:
    return _decoder(model_type, *shape, context=context, theta=theta, eps=1e-6, **rest)


def _gpt_oss(layers: int, experts: int) -> Config:
    return _config("gpt_oss", 201_088, 2880, 2880, layers, "64/8/64") | {
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
    }


def _deepseek(model_type: str, *shape: Any, kv: int, experts: int, active: int, width: int, **rest: Any) -> Config:
    """`experts` are routed ones; heads are 128 numbers and 64 rotated ones."""
    return _config(model_type, *shape) | {
        "max_position_embeddings": 163_840,
        "rope_scaling": _DEEPSEEK_YARN,
        "rms_norm_eps": 1e-6,
        "kv_lora_rank": kv,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": experts,
        "num_experts_per_tok": active,
        "moe_intermediate_size": width,
        **rest,
    }


def _granite4(hidden: int, width: int, heads: str, **rest: Any) -> Config:
    """Four of 40 layers attend, without positions; the others are Mamba-2 with heads of 64 numbers."""
    return _config("granitemoehybrid", 100_352, hidden, width, 40, heads) | {
        "max_position_embeddings": 131_072,
        "position_embedding_type": "nope",
        "rms_norm_eps": 1e-5,
        "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
        "mamba_n_heads": hidden // 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "embedding_multiplier": 12,
        "residual_multiplier": 0.22,
        "tie_word_embeddings": True,
        **rest,
    }


_DEEPSEEK_YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3_1: Config = {"context": 131_072, "theta": 500_000.0, "rope_scaling": _LLAMA_3_ROPE}
_LLAMA_3_2: Config = {**_LLAMA_3_1, "rope_scaling": {**_LLAMA_3_ROPE, "factor": 32.0}, "tie_word_embeddings": True}
_GEMMA_3 = {"sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
# Phi 4 mini's first 31 factors grow by one ratio (to a part in a billion); the rest are listed.
_PHI_4_LONG = [1.118320672**power for power in range(31)] + [
    *(32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7),
    *(32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
]

_DEEPSEEK_V3 = _deepseek(
    "deepseek_v3",
    *(129_280, 7168, 18_432, 61, "128/128"),
    kv=512,
    experts=256,
    active=8,
    width=2048,
    rope_scaling={**_DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    n_shared_experts=1,
    first_k_dense_replace=3,
    n_group=8,
    topk_group=4,
    routed_scaling_factor=2.5,
    q_lora_rank=1536,
)

_MISTRAL = 32_000, 4096, 14_336, 32, "32/8"
_QWEN_3_EXPERTS: Config = {
    "context": 40_960,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}

CONFIGS: dict[str, Config] = {
    "llama-2-7b": _llama(32_000, 4096, 11_008, 32, "32/32", context=4096),
    "llama-2-13b": _llama(32_000, 5120, 13_824, 40, "40/40", context=4096),
    "llama-2-70b": _llama(32_000, 8192, 28_672, 80, "64/8", context=4096),
    "llama-3-8b": _llama(128_256, 4096, 14_336, 32, "32/8", context=8192, theta=500_000.0),
    "llama-3-70b": _llama(128_256, 8192, 28_672, 80, "64/8", context=8192, theta=500_000.0),
    "llama-3.1-8b": _llama(128_256, 4096, 14_336, 32, "32/8", **_LLAMA_3_1),
    "llama-3.1-70b": _llama(128_256, 8192, 28_672, 80, "64/8", **_LLAMA_3_1),
    "llama-3.1-405b": _llama(128_256, 16_384, 53_248, 126, "128/8", **_LLAMA_3_1),
    "llama-3.2-1b": _llama(128_256, 2048, 8192, 16, "32/8/64", **_LLAMA_3_2),
    "llama-3.2-3b": _llama(128_256, 3072, 8192, 28, "24/8/128", **_LLAMA_3_2),
    "llama-3.3-70b": _llama(128_256, 8192, 28_672, 80, "64/8", **_LLAMA_3_1),
    "llama-4-scout": _llama4(experts=16, moe_step=1, context=10_485_760),
    "llama-4-maverick": _llama4(experts=128, moe_step=2, context=1_048_576),
    "smollm2-135m": _llama(49_152, 576, 1536, 30, "9/3", context=8192, theta=100_000.0, tie_word_embeddings=True),
    "smollm2-360m": _llama(49_152, 960, 2560, 32, "15/5", context=8192, theta=100_000.0, tie_word_embeddings=True),
    "smollm2-1.7b": _llama(49_152, 2048, 8192, 24, "32/32", context=8192, theta=130_000.0, tie_word_embeddings=True),
    "mistral-7b": _decoder("mistral", *_MISTRAL, context=32_768, theta=10_000.0, sliding_window=4096),
    "mixtral-8x7b": _decoder(
        *("mixtral", *_MISTRAL),
        context=32_768,
        theta=1e6,
        sliding_window=None,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "qwen2.5-0.5b": _qwen("qwen2", 151_936, 896, 4864, 24, "14/2", context=32_768, tie_word_embeddings=True),
    "qwen2.5-1.5b": _qwen("qwen2", 151_936, 1536, 8960, 28, "12/2", context=32_768, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen("qwen2", 152_064, 3584, 18_944, 28, "28/4", context=32_768),
    "qwen2.5-72b": _qwen("qwen2", 152_064, 8192, 29_568, 80, "64/8", context=32_768),
    "qwen3-0.6b": _qwen("qwen3", 151_936, 1024, 3072, 28, "16/8/128", context=40_960, tie_word_embeddings=True),
    "qwen3-8b": _qwen("qwen3", 151_936, 4096, 12_288, 36, "32/8/128", context=40_960),
    "qwen3-32b": _qwen("qwen3", 151_936, 5120, 25_600, 64, "64/8/128", context=40_960),
    "qwen3-30b-a3b": _qwen(
        *("qwen3_moe", 151_936, 2048, 6144, 48, "32/4/128"), **_QWEN_3_EXPERTS, moe_intermediate_size=768
    ),
    "qwen3-235b-a22b": _qwen(
        *("qwen3_moe", 151_936, 4096, 12_288, 94, "64/4/128"), **_QWEN_3_EXPERTS, moe_intermediate_size=1536
    ),
    "gemma-2-9b": _config("gemma2", 256_000, 3584, 14_336, 42, "16/8/256")
    | {
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "gemma-3-270m": _config(
        "gemma3_text", 262_144, 640, 2048, 18, "4/1/256", max_position_embeddings=32_768, sliding_window=512
    ),
    "gemma-3-1b": _config(
        "gemma3_text", 262_144, 1152, 6912, 26, "4/1/256", max_position_embeddings=32_768, sliding_window=512
    ),
    "gemma-3-4b": _config("gemma3_text", 262_208, 2560, 10_240, 34, "8/4/256", **_GEMMA_3),
    "gemma-3-12b": _config("gemma3_text", 262_208, 3840, 15_360, 48, "16/8/256", **_GEMMA_3),
    "gemma-3-27b": _config(
        "gemma3_text", 262_208, 5376, 21_504, 62, "32/16/128", query_pre_attn_scalar=168, **_GEMMA_3
    ),
    "phi-3-mini": _config("phi3", 32_064, 3072, 8192, 32, "32/32")
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": 2047},
    "phi-4-mini": _config("phi3", 200_064, 3072, 8192, 32, "24/8")
    | {
        "max_position_embeddings": 131_072,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": 262_144,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": _PHI_4_LONG},
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 50_257,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
    },
    "olmo-2-7b": _decoder("olmo2", 100_352, 4096, 11_008, 32, "32/32", context=4096, theta=500_000.0, eps=1e-6),
    "gpt-oss-20b": _gpt_oss(layers=24, experts=32),
    "gpt-oss-120b": _gpt_oss(layers=36, experts=128),
    "deepseek-v2-lite": _deepseek(
        "deepseek_v2",
        *(102_400, 2048, 10_944, 27, "16/16"),
        kv=512,
        experts=64,
        active=6,
        width=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
        topk_method="greedy",
        q_lora_rank=None,
    ),
    "deepseek-v2": _deepseek(
        "deepseek_v2",
        *(102_400, 5120, 12_288, 60, "128/128"),
        kv=512,
        experts=160,
        active=6,
        width=1536,
        n_shared_experts=2,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
        n_group=8,
        topk_group=3,
        routed_scaling_factor=16.0,
        q_lora_rank=1536,
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_V3,
    "granite-4.0-h-micro": _granite4(
        *(2048, 8192, "32/8"),
        num_local_experts=0,
        shared_intermediate_size=8192,
        attention_multiplier=0.015625,
        logits_scaling=8,
    ),
    "granite-4.0-h-tiny": _granite4(
        *(1536, 512, "12/4"),
        num_local_experts=64,
        num_experts_per_tok=6,
        shared_intermediate_size=1024,
        attention_multiplier=0.0078125,
        logits_scaling=6,
    ),
    "granite-4.0-h-small": _granite4(
        *(4096, 768, "32/8"),
        num_local_experts=72,
        num_experts_per_tok=10,
        shared_intermediate_size=1536,
        attention_multiplier=0.0078125,
        logits_scaling=16,
    ),
    "qwen3-next-80b-a3b": _qwen(
        "qwen3_next",
        *(151_936, 2048, 5120, 48, "16/2/256"),
        context=262_144,
        theta=1e7,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
}

HUB = {
    "llama-2-7b": "meta-llama/Llama-2-7b-chat-hf",
    "llama-2-13b": "meta-llama/Llama-2-13b-chat-hf",
    "llama-2-70b": "meta-llama/Llama-2-70b-chat-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "mistral-7b": "mistralai/Mistral-7B-Instruct-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "gemma-2-9b": "google/gemma-2-9b-it",
    "gemma-3-270m": "google/gemma-3-270m-it",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi-4-mini": "microsoft/Phi-4-mini-instruct",
    "gpt2": "openai-community/gpt2",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "deepseek-v2": "deepseek-ai/DeepSeek-V2-Chat",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "granite-4.0-h-micro": "ibm-granite/granite-4.0-h-micro",
    "granite-4.0-h-tiny": "ibm-granite/granite-4.0-h-tiny",
    "granite-4.0-h-small": "ibm-granite/granite-4.0-h-small",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}
"""Where each is published, so that a plan can name what to serve."""


DUMMY = "dummy:"
"""Before a published name: its shape with made-up weights and no words, for benchmarks."""


def find(name: str) -> ModelSpec:
    """The spec of a published model; case does not matter, nor whether it is asked for with random weights."""
    name = name.removeprefix(DUMMY)
    config = CONFIGS.get(name.lower())
    if config is None:
        near = get_close_matches(name.lower()[:100], CONFIGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ConfigError(f"no model is called {name[:100]!r}{hint} Known are: {', '.join(CONFIGS)}")
    return spec_from_config(config)


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return BY_MODEL_TYPE[config["model_type"]].spec_from_config(config)
