"""Activations are rounded as the engines do that are stood in for, and only before matrices."""

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.execution.native.load import load_native
from penstock.runtime.files import open_files
from penstock.runtime.formats.quants import unpack
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.quantized.packed import Int8Linear
from penstock.runtime.ops.quantized.int8 import PackedInt8
from penstock.tools.evaluate.activations import RoundedLinear, round_inputs, rounded
from penstock.tools.quantize.ggml import encode
from tests.models.ours import Ours
from tests.models.tiny import SMALL, Variant
from tests.quantize.making import make, save
from tests.runtime.driving import all_logits, prompts

pytestmark = pytest.mark.torch


def rows() -> torch.Tensor:
    found = torch.randn((9, 96), generator=torch.Generator().manual_seed(2))
    found[3] = 0
    found[4, 5] = 60.0  # an outlier takes its row's steps
    return found


def test_blocks_are_those_of_llama_cpp() -> None:
    found = rounded(rows(), "q8")
    packed = encode("Q8_0", rows().numpy())
    assert np.allclose(found.numpy(), unpack("Q8_0", packed), rtol=0, atol=1e-6)


def test_an_error_is_at_most_half_a_step_and_blocks_err_less() -> None:
    x = rows()
    by_token, by_block = rounded(x, "int8"), rounded(x, "q8")
    assert ((by_token - x).abs() <= x.abs().amax(-1, keepdim=True) / 254 + 1e-6).all()
    assert (by_block - x)[4].norm() < (by_token - x)[4].norm()
    assert (by_token[3] == 0).all()


def test_every_matrix_of_the_layers_is_taken_hold_of(tmp_path: Path) -> None:
    ours = Ours(save(Variant("Llama", SMALL | {"vocab_size": 257}), tmp_path / "model"), 64)
    network = ours.module
    assert isinstance(network, Decoder)
    count = sum(isinstance(module, RoundedLinear) for module in network.modules())
    assert count == 0
    assert round_inputs(network, "int8") == 4 * network.spec.num_layers
    assert sum(isinstance(module, RoundedLinear) for module in network.modules()) == 4 * network.spec.num_layers


def test_a_file_that_asks_for_8_bits_is_computed_with_8_bits(tmp_path: Path) -> None:
    """A packed W8A8 model under torch's layers is the model in floats whose inputs are rounded by token."""
    source = save(Variant("Llama", SMALL | {"vocab_size": 257, "intermediate_size": 128}), tmp_path / "model")
    files = open_files(str(make(source, tmp_path / "made", "w8a8").target.model_path))
    cpu, wide = torch.device("cpu"), torch.float32
    packed, floats, unrounded = (
        load_model(files.spec, files.model.recipes, files.checkpoint, cpu, wide, packs=packs)
        for packs in (True, False, False)
    )
    assert all(isinstance(layer.mlp.down, Int8Linear) for layer in packed.layers)
    round_inputs(floats, "int8")
    (text,) = prompts(40, vocab_size=257)
    mine, theirs, plain = (all_logits(model, text) for model in (packed, floats, unrounded))
    assert (mine - theirs).norm() < 0.1 * (mine - plain).norm()


@pytest.mark.parametrize(("format_", "is_rounded"), [("w8a8", True), ("int8", False)])
def test_the_native_step_rounds_for_files_that_ask_for_it(tmp_path: Path, format_: str, is_rounded: bool) -> None:
    """In layers; what is looked up or scored is not."""
    sizes = SMALL | {"vocab_size": 257, "intermediate_size": 128, "hidden_size": 64, "head_dim": 32}
    files = open_files(
        str(make(save(Variant("Llama", sizes), tmp_path / "model"), tmp_path / "made", format_).target.model_path)
    )
    decoder = load_native(files.spec, files.model.recipes, files.checkpoint, 1)
    if decoder is None:
        pytest.skip("the native library is not built")
    for name in ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down"):
        assert isinstance(decoder.matrix(f"layers.1.{name}"), PackedInt8) == is_rounded
    assert not isinstance(decoder.matrix("output"), PackedInt8)
