"""The folder that training writes and `--speculate KIND:DIR` serves: weights by their published names, and config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ConfigError
from penstock.runtime.formats.tensor_file import write_safetensors


def make_folder(folder: Path) -> None:
    """Before anything is computed: what cannot be written is known at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made: {error.strerror}; name another folder") from error
    if any(folder.iterdir()):
        raise ConfigError(f"--out {folder} is not empty; name another folder, or clear it")


def write_heads(folder: Path, tensors: Mapping[str, Tensor], token_ids: Tensor, config: Mapping[str, Any]) -> None:
    named = {name: tensor.detach().to("cpu", torch.float16).numpy() for name, tensor in tensors.items()}
    offsets = (token_ids.cpu() - torch.arange(len(token_ids))).numpy()
    write_safetensors(folder / "model.safetensors", {**named, "d2t": offsets})
    whole = {**config, "draft_vocab_size": len(token_ids)}
    (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
