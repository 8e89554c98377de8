"""A spec written down again: as a Hugging Face `config.json`, or as the metadata of a GGUF file.

What is written is read back at once; a model of which something would be lost is refused, so no file can promise another
model than it holds.
"""

import math
from dataclasses import asdict, replace
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.runtime.models.reading.positions import FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS
from penstock.runtime.models.registry import BY_CLASS, BY_GGUF, read_config, read_gguf
from penstock.runtime.models.spec import (
    GQA,
    MLA,
    DynamicScaling,
    GatedMLP,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelSpec,
    MoE,
    Rope,
    RopeScaling,
    YarnScaling,
    only_gqa,
)
from penstock.runtime.models.weights import Recipes

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
"""Our architectures whose config this module can write, and the class that a config names."""
MODEL_TYPES = {"gemma3": "gemma3_text"}
GGUF_NAMES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
"""Where GGUF's name is not ours."""


def published_recipes(spec: ModelSpec, *, gguf: bool) -> Recipes:
    """Names and orders of tensors in a file of that kind, as everyone writes them."""
    if gguf and gguf_name(spec) in BY_GGUF:
        return BY_GGUF[gguf_name(spec)].gguf_recipes(spec)
    if not gguf and spec.architecture in CLASSES:
        return BY_CLASS[CLASSES[spec.architecture]].recipes(spec)
    raise ConfigError(f"models of architecture {spec.architecture} are not written in this format; choose another")


def gguf_name(spec: ModelSpec) -> str:
    return GGUF_NAMES.get(spec.architecture, spec.architecture)


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """A `config.json` that reads as this spec."""
    attention, mlp = only_gqa(spec.layers[0].attention, "described in GGUF"), spec.layers[0].mlp
    name = CLASSES.get(spec.architecture)
    if name is None:
        raise _unwritten(spec, "config.json")
    windows = sorted({layer.attention.window for layer in spec.layers if layer.attention.window})
    width = mlp.expert.width if isinstance(mlp, MoE) else mlp.width
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": MODEL_TYPES.get(spec.architecture, spec.architecture),
        "hidden_size": spec.hidden_size,
        "intermediate_size": width,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": "silu" if mlp_activation(spec) == "silu" else "gelu_pytorch_tanh",
        "max_position_embeddings": _stated_context(spec),
        "rms_norm_eps": spec.norm.eps,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_embedding,
        **_rope_config(attention.rope),
    }
    if spec.architecture == "llama":
        config |= {"attention_bias": attention.out_bias, "mlp_bias": isinstance(mlp, GatedMLP) and mlp.bias}
    if isinstance(mlp, MoE):
        config |= {"num_experts_per_tok": mlp.num_active, "num_experts": mlp.num_experts}
        config |= {
            "num_local_experts": mlp.num_experts,
            "moe_intermediate_size": width,
            "norm_topk_prob": mlp.normalize,
        }
    if windows:
        config["sliding_window"] = windows[0]
        if len({layer.attention.window for layer in spec.layers}) > 1:
            config["layer_types"] = [
                "sliding_attention" if layer.attention.window else "full_attention" for layer in spec.layers
            ]
    _check(spec, lambda: read_config(config).spec, "config.json")
    return config


def metadata_of(spec: ModelSpec) -> tuple[dict[str, object], dict[str, list[float]]]:
    """A GGUF file's metadata that read as this spec, but for its words; and the tensors that are settings, by name."""
    attention, mlp, name = only_gqa(spec.layers[0].attention, "described in GGUF"), spec.layers[0].mlp, gguf_name(spec)
    found: dict[str, object] = {
        "block_count": spec.num_layers,
        "context_length": _stated_context(spec),
        "embedding_length": spec.hidden_size,
        "feed_forward_length": mlp.expert.width if isinstance(mlp, MoE) else mlp.width,
        "attention.head_count": attention.num_heads,
        "attention.head_count_kv": attention.num_kv_heads,
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm.eps,
        "vocab_size": spec.vocab_size,
    }
    if attention.rope is not None:
        found |= {"rope.dimension_count": attention.rope.dim, "rope.freq_base": float(attention.rope.theta)}
    window = max((layer.attention.window or 0 for layer in spec.layers), default=0)
    if window or spec.architecture == "phi3":
        found["attention.sliding_window"] = window
    if isinstance(mlp, MoE):
        found |= {"expert_count": mlp.num_experts, "expert_used_count": mlp.num_active}
        found["expert_feed_forward_length"] = mlp.expert.width
    if attention.logit_softcap:
        found["attn_logit_softcapping"] = float(attention.logit_softcap)
    if spec.logit_softcap:
        found["final_logit_softcapping"] = float(spec.logit_softcap)
    scaling = None if attention.rope is None else attention.rope.scaling
    keys, factors = _scaling_metadata(attention.rope, scaling)
    metadata = {"general.architecture": name, **{f"{name}.{key}": value for key, value in (found | keys).items()}}
    names = set(factors) | ({"token_embd.weight"} if spec.tied_embedding else {"token_embd.weight", "output.weight"})
    names |= _bias_names(spec)
    is_left_out = isinstance(scaling, Llama3Scaling)  # it comes back as the factors that stand for it

    def compared(each: ModelSpec) -> ModelSpec:
        return _without_scaling(each) if is_left_out else each

    _check(compared(spec), lambda: compared(read_gguf(metadata, names, factors).spec), "GGUF metadata")
    return metadata, factors


def mlp_activation(spec: ModelSpec) -> str:
    mlp = spec.layers[0].mlp
    return mlp.expert.activation if isinstance(mlp, MoE) else mlp.activation


def _without_scaling(spec: ModelSpec) -> ModelSpec:
    layers = tuple(
        replace(layer, attention=replace(layer.attention, rope=replace(layer.attention.rope, scaling=None)))
        if isinstance(layer.attention, GQA | MLA) and layer.attention.rope
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def _bias_names(spec: ModelSpec) -> set[str]:
    """Tensors by whose presence a GGUF file says that there are biases."""
    layer = spec.layers[0]
    names = {"blk.0.attn_q.bias"} if only_gqa(layer.attention, "described in GGUF").qkv_bias else set()
    names |= {"blk.0.attn_output.bias"} if only_gqa(layer.attention, "described in GGUF").out_bias else set()
    return names | ({"blk.0.ffn_gate.bias"} if isinstance(layer.mlp, GatedMLP) and layer.mlp.bias else set())


def _stated_context(spec: ModelSpec) -> int:
    """What a file states: some scalings stretch it when it is read."""
    rope = spec.layers[0].attention.rope
    match None if rope is None else rope.scaling:
        case LinearScaling(factor):
            return round(spec.max_context / factor)
        case _:
            return spec.max_context


_ROPE_TYPES: dict[type, str] = {
    LinearScaling: "linear",
    DynamicScaling: "dynamic",
    YarnScaling: "yarn",
    Llama3Scaling: "llama3",
    LongRopeScaling: "longrope",
}
_ORIGINAL = "original_max_position_embeddings"
_ROPE_KEYS = {
    "original_context": _ORIGINAL,
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
}
"""Where a config's name for a field of ours is another."""


def _rope_config(rope: Rope | None) -> dict[str, Any]:
    if rope is None:
        return {}
    if rope.scaling is None:
        return {"rope_theta": rope.theta}
    section = {_ROPE_KEYS.get(name, name): value for name, value in asdict(rope.scaling).items()}
    config: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": section}
    section["rope_type"] = _ROPE_TYPES[type(rope.scaling)]
    if isinstance(rope.scaling, DynamicScaling | LongRopeScaling):
        original = section.pop(_ORIGINAL)
        config |= {_ORIGINAL: original} if isinstance(rope.scaling, LongRopeScaling) else {}
    return config


def _scaling_metadata(
    rope: Rope | None, scaling: RopeScaling | None
) -> tuple[dict[str, object], dict[str, list[float]]]:
    match scaling:
        case LinearScaling(factor):
            return {"rope.scaling.type": "linear", "rope.scaling.factor": float(factor)}, {}
        case YarnScaling() as yarn:
            keys: dict[str, object] = {"rope.scaling.type": "yarn", "rope.scaling.factor": float(yarn.factor)}
            return keys | {"rope.scaling.original_context_length": yarn.original_context}, {}
        case Llama3Scaling() as three if rope is not None:
            return {}, {FREQUENCY_FACTORS: _llama3_factors(rope, three)}
        case LongRopeScaling() as long if long.short_factors == long.long_factors:
            return {}, {FREQUENCY_FACTORS: list(long.short_factors)}
        case LongRopeScaling() as long:
            keys = {"rope.scaling.original_context_length": long.original_context}
            keys["rope.scaling.attn_factor"] = float(long.attention_factor)
            return keys, {SHORT_FACTORS: list(long.short_factors), LONG_FACTORS: list(long.long_factors)}
    return {}, {}


def _llama3_factors(rope: Rope, scaling: Llama3Scaling) -> list[float]:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    factors = []
    for index in range(0, rope.dim, 2):
        length = 2 * math.pi * rope.theta ** (index / rope.dim)
        share = min(max((scaling.original_context / length - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / scaling.factor + share))
    return factors


def _check(spec: ModelSpec, read: Any, what: str) -> None:
    try:
        found = read()
    except PenstockError as error:
        raise _unwritten(spec, what) from error
    if replace(found, architecture=spec.architecture) != spec:
        raise _unwritten(spec, what)


def _unwritten(spec: ModelSpec, what: str) -> ConfigError:
    return ConfigError(
        f"this model of architecture {spec.architecture} cannot be described by a {what} without loss; "
        "choose a format of the kind its own files have"
    )
