"""An adapter that is damaged, hostile or of another kind is refused with its reason, and nothing else happens."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.adapters import read_adapter
from penstock.runtime.files import open_files
from penstock.runtime.models.spec import ModelSpec
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model

FIRST = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return open_files(str(write_chat_model(tmp_path_factory.mktemp("base") / "tiny.gguf"))).spec


def refused(folder: Path, spec: ModelSpec, words: str, **settings: Any) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_adapter(folder, spec, **settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "kind LORA"),
        ({"bias": "all"}, "bias none"),
        ({"r": 0}, "r"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"lora_bias": True}, "biases of its own"),
        ({"layer_replication": [[0, 1]]}, "several times"),
        ({"alpha_pattern": {"(a+)+$": 1.0}}, "too involved"),
        ({"alpha_pattern": {"[": 1.0}}, "regular expression"),
    ],
)
def test_settings(change: dict[str, Any], words: str, tmp_path: Path, spec: ModelSpec) -> None:
    refused(write_adapter(tmp_path / "a", 1, **change), spec, words)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        (f"{FIRST}.lora_A.weight", torch.full((4, 64), float("nan")), "not finite"),
        (f"{FIRST}.lora_A.weight", torch.zeros((4, 63)), "another base"),
        (f"{FIRST}.lora_A.weight", torch.zeros(4), "dimensions"),
        (f"{FIRST}.lora_A.weight", torch.zeros((5, 64)), "ranks differ"),
        (f"{FIRST}.lora_B.weight", torch.zeros((65, 4)), "another base"),
        (f"{FIRST}.lora_C.weight", torch.zeros((4, 4)), "another base|served"),
        ("base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight", torch.zeros((4, 64)), "another base"),
        ("base_model.model.model.layers.0.nonsense.lora_A.weight", torch.zeros((4, 64)), "another base"),
        ("base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", torch.zeros((4, 64)), "belong together"),
        ("base_model.model.lm_head.weight", torch.zeros((7, 64)), "changed vocabulary"),
        ("base_model.model.model.layers.0.input_layernorm.weight", torch.zeros((8, 64)), "modules_to_save"),
        ("anything", torch.zeros(1), "no kind"),
    ],
)
def test_tensors(name: str, tensor: torch.Tensor, words: str, tmp_path: Path, spec: ModelSpec) -> None:
    path = write_adapter(tmp_path / "a", 1) / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: tensor}, path)
    refused(path.parent, spec, words)


def test_files(tmp_path: Path, spec: ModelSpec) -> None:
    folder = write_adapter(tmp_path / "a", 1)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        weights.write_bytes(whole[:size])
        refused(folder, spec, "damaged|cut short|fetch it again")
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04")
    refused(folder, spec, "can run code")
    refused(tmp_path, spec, "no adapter")
    outside = write_adapter(tmp_path / "b", 1)
    (outside / "adapter_model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (outside / "adapter_model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    refused(outside, spec, "leaves the directory")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        pipe = write_adapter(tmp_path / f"pipe {name}", 1)  # whoever opens it to read waits for a writer
        (pipe / name).unlink()
        os.mkfifo(pipe / name)
        refused(pipe, spec, "no plain file")
    deep = write_adapter(tmp_path / "c", 1)
    (deep / "adapter_config.json").write_text("[" * 100_000)
    refused(deep, spec, "cannot be read|JSON object")
    (deep / "adapter_config.json").write_text(json.dumps({"x": "y" * (1 << 21)}))
    refused(deep, spec, "JSON object")


def test_no_memory_is_taken_for_numbers_of_another_model(tmp_path: Path, spec: ModelSpec) -> None:
    """A file of four terabytes, all of them a hole."""
    folder = write_adapter(tmp_path / "a", 1)
    name, columns, size = f"{FIRST}.lora_A.weight", 1 << 38, 1 << 42
    header = json.dumps({name: {"dtype": "F32", "shape": [4, columns], "data_offsets": [0, size]}}).encode()
    header = header.replace(b"}}", b"},") + json.dumps(
        {f"{FIRST}.lora_B.weight": {"dtype": "F32", "shape": [64, 4], "data_offsets": [size, size + 1024]}}
    ).encode().removeprefix(b"{")
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        try:
            file.truncate(8 + len(header) + size + 1024)
        except OSError:
            pytest.skip("no room for holes here")
    refused(folder, spec, "another base")


def test_a_rank_above_the_limit(tmp_path: Path, spec: ModelSpec) -> None:
    refused(write_adapter(tmp_path / "a", 1, rank=9), spec, "at most 8", max_rank=8)
    assert read_adapter(write_adapter(tmp_path / "b", 1, rank=8), spec, 8).rank == 8


def test_equal_content_has_one_digest(tmp_path: Path, spec: ModelSpec) -> None:
    first, again, other = (
        read_adapter(write_adapter(tmp_path / name, seed), spec) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.digest == again.digest != other.digest
