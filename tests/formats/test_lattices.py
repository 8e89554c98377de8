"""Blocks of one to three bits are read as their own packages read them; bitsandbytes' tables as it describes them."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.runtime.files import ModelFiles
from penstock.runtime.formats.lattices import LATTICES
from penstock.runtime.formats.quants import unpack
from tests.models.ours import Ours
from tests.models.tiny import SMALL, Variant
from tests.quantize.making import save

libgguf = pytest.importorskip("libgguf")
pytestmark = pytest.mark.torch
NF4 = torch.tensor(
    [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626,
     0.723, 1.0]
)  # fmt: skip
BLOCK = 64


@pytest.mark.parametrize("dtype", sorted(LATTICES))
def test_lattices_are_read_as_gguf_reads_them(dtype: str) -> None:
    draw = np.random.default_rng(4)
    rows = (draw.standard_t(5, (3, 512)) * 0.05).astype(np.float32)
    importance = (draw.random(512) + 0.1).astype(np.float32)
    kind = getattr(libgguf.GGMLQuantizationType, dtype)
    packed = np.asarray(libgguf.quantize_rows(rows, kind, imatrix=importance)).view(np.uint8).reshape(3, -1)
    theirs = gguf.quants.dequantize(packed, getattr(gguf.GGMLQuantizationType, dtype))
    found = unpack(dtype, packed)
    assert np.allclose(found, theirs, rtol=1e-6, atol=1e-8)
    assert np.abs(found - rows).mean() < np.abs(rows).mean()


def _nf4(name: str, weight: torch.Tensor, nested: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix as bitsandbytes writes it, and the numbers it stands for."""
    blocks = weight.float().view(-1, BLOCK)
    most = blocks.abs().amax(-1)
    parts: dict[str, torch.Tensor] = {"quant_map": NF4.clone()}
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "float32", "shape": list(weight.shape)}
    if nested:
        offset, table = float(most.mean()), torch.linspace(-1, 1, 256)
        outer = (most - offset).abs().max().view(1)
        codes = ((most - offset)[:, None] / outer - table).abs().argmin(-1)
        parts |= {"absmax": codes.to(torch.uint8), "nested_absmax": outer, "nested_quant_map": table}
        state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
        most = table[codes] * outer + offset
    else:
        parts["absmax"] = most
    codes = (blocks / most[:, None])[..., None].sub(NF4).abs().argmin(-1)
    pairs = codes.flatten().view(-1, 2).to(torch.uint8)
    parts["quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    found = {f"{name}.weight.{part}": values for part, values in parts.items()}
    found[f"{name}.weight"] = (pairs[:, :1] << 4) | pairs[:, 1:]
    return found, (NF4[codes] * most[:, None]).view(weight.shape)


@pytest.mark.parametrize("nested", [False, True])
def test_a_bitsandbytes_checkpoint_computes_with_its_levels(nested: bool, tmp_path: Path) -> None:
    folder = save(Variant("Llama", SMALL | {"vocab_size": 257}), tmp_path / "plain")
    plain = ModelFiles("", folder).checkpoint
    tensors = {
        name: torch.from_numpy(np.frombuffer(plain.tensor(name).data.tobytes(), np.float32).copy()).view(
            plain.tensor(name).shape
        )
        for name in plain.names
    }
    coded, read = dict(tensors), dict(tensors)
    for name, values in tensors.items():
        if name.endswith("_proj.weight"):
            del coded[name]
            parts, read[name] = _nf4(name.removesuffix(".weight"), values, nested)
            coded |= parts
    config = json.loads((folder / "config.json").read_text())
    save_file(read, folder / "model.safetensors")
    expected = Ours(folder, 64).greedy([3, 5, 8, 13], 3, 6)[0]
    save_file(coded, folder / "model.safetensors")
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    assert Ours(folder, 64).greedy([3, 5, 8, 13], 3, 6)[0] == expected
