"""Writes a tiny model of `transformers` as the GGUF file that llama.cpp would make of it.

Names and keys come from the `gguf` package, so that ours are checked against theirs.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

Array = np.ndarray[Any, np.dtype[np.float32]]
Named = tuple[str, Array]

ARCHITECTURES = {
    "Llama": "llama",
    "Mistral": "llama",
    "Mixtral": "llama",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "Qwen3Moe": "qwen3moe",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3",
    "Phi3": "phi3",
    "GPT2": "gpt2",
    "Olmo2": "olmo2",
    "GptOss": "gpt-oss",
    "Bert": "bert",
}
EXPERT = re.compile(r"(model\.layers\.\d+)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight")
MERGED = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def write_gguf(model: PreTrainedModel, family: str, path: Path) -> None:
    name = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, name)
    config = model.config
    _add_metadata(writer, config, family)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for theirs, values in _tensors(model, family):
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        writer.add_tensor(ours, np.ascontiguousarray(values))
    for factor_name, factors in _factors(config):
        writer.add_tensor(factor_name, np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, config: Any, family: str) -> None:
    heads = config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    if family == "GPT2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    if family == "Bert":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(config.type_vocab_size)
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if head_dim * heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _add_rope(writer, config, head_dim)
    _add_window_and_caps(writer, config, family)
    _add_experts(writer, config)


def _add_rope(writer: gguf.GGUFWriter, config: Any, head_dim: int) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _add_window_and_caps(writer: gguf.GGUFWriter, config: Any, family: str) -> None:
    window = getattr(config, "sliding_window", None)
    if window and family != "Qwen2":
        writer.add_sliding_window(window)
    elif family == "Phi3":
        writer.add_sliding_window(0)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    count = getattr(config, "num_local_experts", None)
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config.num_experts_per_tok)
        width = getattr(config, "moe_intermediate_size", config.intermediate_size)
        writer.add_expert_feed_forward_length(width)


def _tensors(model: PreTrainedModel, family: str) -> Iterator[Named]:
    """The checkpoint's tensors as the converter changes them."""
    state = revert_weight_conversion(model, model.state_dict())
    tied = getattr(model.config, "tie_word_embeddings", False)
    experts: dict[str, dict[int, Array]] = defaultdict(dict)
    for name, tensor in state.items():
        values = tensor.detach().to(torch.float32).numpy()
        if name == "lm_head.weight" and tied:
            continue
        if found := EXPERT.fullmatch(name):
            merged = f"{found[1]}.mlp.experts.{MERGED.get(found[3], found[3])}.weight"
            experts[merged][int(found[2])] = values
        else:
            yield from _changed(name, values, model.config, family)
    for name, parts in experts.items():
        yield name, np.stack([parts[index] for index in sorted(parts)])


def _changed(name: str, values: Array, config: Any, family: str) -> Iterator[Named]:
    if ARCHITECTURES[family] == "llama" and re.search(r"\.[qk]_proj\.", name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        paired = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        yield name, paired.swapaxes(1, 2).reshape(values.shape)
    elif family in ("Gemma2", "Gemma3") and name.endswith("norm.weight"):
        yield name, values + 1
    elif family == "GPT2" and re.search(r"\.c_(attn|proj|fc)\.weight", name):
        yield name, values.T
    elif family == "GptOss" and ".experts." in name:
        yield from _changed_gpt_oss(name, values)
    else:
        yield (name + ".weight" if name.endswith("sinks") else name), values


def _changed_gpt_oss(name: str, values: Array) -> Iterator[Named]:
    stem = name.removesuffix("_bias")
    suffix = ".bias" if name.endswith("_bias") else ".weight"
    rows = values if suffix == ".bias" else values.swapaxes(1, 2)
    if "gate_up" in stem:
        yield stem.replace("gate_up", "gate") + suffix, rows[:, ::2]
        yield stem.replace("gate_up", "up") + suffix, rows[:, 1::2]
    else:
        yield stem + suffix, rows


def _factors(config: Any) -> Iterator[tuple[str, list[float]]]:
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, config.head_dim)
    elif rope.get("rope_type") == "longrope":
        yield "rope_factors_short.weight", rope["short_factor"]
        yield "rope_factors_long.weight", rope["long_factor"]


def _llama3_factors(rope: dict[str, Any], dim: int) -> list[float]:
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for index in range(0, dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (index / dim)
        share = min(max((original / length - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / rope["factor"] + share))
    return factors
