"""Adapters made by peft over the tiny models of `tests/models/tiny.py`, and what peft makes of them: the oracle here."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

from tests.models.tiny import Variant
from tests.offline import HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS, WIDTH

MODULES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "mlp.gate_proj": (WIDTH, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDTH),
}
"""Rows and columns of the modules of `tests/offline.py`'s model that adapters change."""


def make_adapter(variant: Variant, folder: Path, seed: int = 1, **settings: Any) -> PeftModel:
    """A random adapter over a variant's model, saved; and the model it makes."""
    torch.manual_seed(seed)
    config = LoraConfig(task_type="CAUSAL_LM", **({"r": 4, "lora_alpha": 6} | settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied matrices
        model = get_peft_model(variant.model(), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.rand(parameter.shape, generator=generator))
            elif "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of embeddings that are saved too
        model.save_pretrained(str(folder))
    return model.eval()


def write_adapter(folder: Path, seed: int, rank: int = 4, scale: float = 0.5, **config: Any) -> Path:
    """An adapter of random numbers over the model of `tests/offline.py`, as peft would save it."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module, (rows, columns) in MODULES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn((rank, columns), generator=generator) * columns**-0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn((rows, rank), generator=generator) * scale
            if config.get("use_dora"):
                tensors[f"{name}.lora_magnitude_vector"] = torch.rand(rows, generator=generator) + 0.5
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": list(MODULES)}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder
