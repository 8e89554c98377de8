"""Adapters of random numbers over any dense model, as peft would save them; peft itself is not needed."""

import json
from pathlib import Path
from typing import Any

import torch

from penstock.runtime.formats.tensor_file import write_safetensors
from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec


def write(folder: Path, spec: ModelSpec, seed: int, rank: int = 4, **config: Any) -> Path:
    """An adapter of random numbers on all linears; `embeds` and `heads` have it change those tables too."""
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert isinstance(mlp, GatedMLP)
    assert isinstance(attention, GQA)
    hidden = spec.hidden_size
    shapes = {
        "self_attn.q_proj": (attention.q_size, hidden),
        "self_attn.k_proj": (attention.kv_size, hidden),
        "self_attn.v_proj": (attention.kv_size, hidden),
        "self_attn.o_proj": (hidden, attention.q_size),
        "mlp.gate_proj": (mlp.width, hidden),
        "mlp.up_proj": (mlp.width, hidden),
        "mlp.down_proj": (hidden, mlp.width),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    for layer in range(spec.num_layers):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = normal(rank, columns) * columns**-0.5
            tensors[f"{name}.lora_B.weight"] = normal(rows, rank) * 0.4
            if config.get("use_dora"):
                tensors[f"{name}.lora_magnitude_vector"] = normal(rows).abs() + 0.5
    if config.pop("embeds", False):
        name = "base_model.model.model.embed_tokens"
        tensors |= {
            f"{name}.lora_embedding_A": normal(rank, spec.vocab_size),
            f"{name}.lora_embedding_B": normal(hidden, rank) * 0.1,
        }
    if config.pop("heads", False):
        name = "base_model.model.lm_head"
        tensors |= {
            f"{name}.lora_A.weight": normal(rank, hidden),
            f"{name}.lora_B.weight": normal(spec.vocab_size, rank) * 0.2,
        }
    folder.mkdir(parents=True)
    numbers = {name: values.numpy() for name, values in tensors.items()}
    write_safetensors(folder / "adapter_model.safetensors", numbers)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder
