"""`penstock show ADAPTER`: what a PEFT directory holds, without the model it is for."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.amounts import format_bytes, format_count
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ModelFileError
from penstock.runtime.formats.safetensors import SafetensorsFile
from penstock.runtime.models.adapters import CONFIG_NAME, WEIGHTS_NAME, read_settings


def is_adapter(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file()


def show_adapter(path: Path, *, is_json: bool) -> int:
    described = describe_adapter(path)
    if is_json:
        print_json(described)
        return 0
    report = described | {
        "parameters": format_count(described["parameters"]),
        "bytes": format_bytes(described["bytes"]),
    }
    rows = [(name.replace("_", " "), _shown(value)) for name, value in report.items()]
    print_table(("adapter", printable(path.name)), rows)
    return 0


def describe_adapter(path: Path) -> dict[str, Any]:
    try:
        settings = read_settings(json.loads((path / CONFIG_NAME).read_text()))
    except (OSError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path / CONFIG_NAME} cannot be read: {error}") from error
    file = SafetensorsFile(path / WEIGHTS_NAME)
    tensors = [file.tensor(name) for name in file.names]
    ranks = Counter(one.shape[0] for one in tensors if one.name.endswith("lora_A.weight"))
    modules = Counter(one.name.split(".lora_")[0].rpartition(".")[2] for one in tensors if ".lora_" in one.name)
    kind = "DoRA" if settings.is_dora else "rsLoRA" if settings.is_rank_stabilized else "LoRA"
    return {
        "kind": kind,
        "base": settings.base,
        "ranks": sorted(ranks),
        "alpha": settings.alpha,
        "modules": sorted(modules),
        "whole_matrices": [one.name for one in tensors if ".lora_" not in one.name],
        "parameters": sum(one.num_values for one in tensors),
        "bytes": sum(one.num_bytes for one in tensors),
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return printable(", ".join(map(str, value)) or "-")
    return printable(str(value))
