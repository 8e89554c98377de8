"""Small checkpoints of random numbers, written without any library that the GPU machine may lack."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from penstock.runtime.formats.tensor_file import write_safetensors

COMMON = {"rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "hidden_act": "silu", "max_position_embeddings": 512}
TINY = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "tie_word_embeddings": True,
}
REAL_SHAPE = TINY | {
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": 4,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "vocab_size": 16_384,
}
"""Of SmolLM2-360M, with fewer layers and tokens: heads that two ranks share unevenly."""
EXPERTS = TINY | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
}


def write_checkpoint(folder: Path, config: dict[str, Any], seed: int = 3) -> Path:
    """A folder as `penstock serve` takes it; a word for each token."""
    source = np.random.default_rng(seed)
    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    tensors: dict[str, np.ndarray[Any, Any]] = {}

    def add(name: str, *shape: int) -> None:
        tensors[f"{name}.weight"] = source.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)

    def add_norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(hidden, dtype=np.float32)

    add("model.embed_tokens", vocab, hidden)
    tensors["model.embed_tokens.weight"] *= np.float32(hidden**0.5)
    add_norm("model.norm")
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv), ("o_proj", hidden)):
            add(f"{layer}.self_attn.{name}", rows, hidden)
        add_norm(f"{layer}.input_layernorm")
        add_norm(f"{layer}.post_attention_layernorm")
        if "num_local_experts" in config:
            add(f"{layer}.block_sparse_moe.gate", config["num_local_experts"], hidden)
            for expert in range(config["num_local_experts"]):
                for name, shape in (("w1", (wide, hidden)), ("w3", (wide, hidden)), ("w2", (hidden, wide))):
                    add(f"{layer}.block_sparse_moe.experts.{expert}.{name}", *shape)
        else:
            for name, shape in (
                ("gate_proj", (wide, hidden)),
                ("up_proj", (wide, hidden)),
                ("down_proj", (hidden, wide)),
            ):
                add(f"{layer}.mlp.{name}", *shape)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    words = {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(vocab)}, "unk_token": "w0"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
