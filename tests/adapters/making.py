"""Adapters made by peft over the tiny models of `tests/models/tiny.py`, and what peft makes of them: the oracle here."""

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.models.tiny import Variant


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
