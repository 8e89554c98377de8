"""GGUF adapters, and PEFT's over a GGUF base: the same numbers whichever names they come under."""

from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file

from penstock.runtime.execution.load.adapters import Adapter, read_adapter
from penstock.runtime.files import open_files
from tests.adapters.making import write_adapter
from tests.offline import HEAD, HEADS, write_chat_model

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.v_proj": "attn_v",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, source: Path, alpha: float) -> Path:
    """As llama.cpp converts: the rows of q are paired as neighbours."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for name, tensor in load_file(source / "adapter_model.safetensors").items():
        layer, module, kind = (
            name.removeprefix("base_model.model.model.layers.").split(".", 1)[0],
            name,
            name.split(".")[-2],
        )
        module = next(theirs for ours, theirs in NAMES.items() if f".{ours}." in name)
        if module == "attn_q" and kind == "lora_B":
            tensor = tensor.view(HEADS, 2, HEAD // 2, -1).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"blk.{layer}.{module}.weight.{kind.lower()}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def products(adapter: Adapter) -> dict[tuple[str, int], torch.Tensor]:
    return {
        (name, number): part.left @ part.right
        for name, parts in adapter.changes.items()
        for number, part in enumerate(parts)
        if part is not None
    }


def test_a_gguf_adapter_is_the_peft_one_it_was_made_of(tmp_path: Path) -> None:
    spec = open_files(str(write_chat_model(tmp_path / "tiny.gguf"))).spec
    peft = write_adapter(tmp_path / "peft", 3, rank=4)
    ours = products(read_adapter(peft, spec))
    theirs = products(read_adapter(write_gguf(tmp_path / "adapter.gguf", peft, alpha=4.0), spec))
    assert ours.keys() == theirs.keys()
    for key, product in ours.items():
        torch.testing.assert_close(theirs[key], product)
