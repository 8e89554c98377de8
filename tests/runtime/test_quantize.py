"""A model of 8-bit floats is nearly the model it was made from, and what must not be rounded is not."""

import torch

from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.quantized.fp8 import Fp8Gated, Fp8Linear, Fp8Norm
from penstock.runtime.models.spec import GatedMLP, Layer, MoE
from penstock.runtime.ops.quantized.fp8 import round_rows
from tests.runtime.driving import Text, all_logits, alone, prompts, tiny_model, tiny_spec


def _error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine - theirs).norm() / theirs.norm())


def test_rounding_keeps_each_number_to_a_sixteenth_of_itself() -> None:
    torch.manual_seed(0)
    numbers = torch.randn((7, 300)) * torch.tensor([1e-20, 1e-3, 1, 1, 30, 1e6, 0])[:, None]
    values, scales = round_rows(numbers)
    back = values.float() * scales[:, None]
    assert torch.isfinite(back).all()
    least = scales[:, None] * 2**-6  # below it numbers are spaced evenly
    near = (back - numbers).abs() <= torch.maximum(numbers.abs() / 16, least / 16)
    assert near[1:].all()


def test_matrices_are_rounded_and_the_rest_is_not() -> None:
    model = tiny_model(96)
    before = sum(parameter.nbytes for parameter in model.layers.parameters())
    quantize_fp8(model)
    assert isinstance(model.output, Linear)
    for layer in model.layers:
        assert isinstance(layer.attention.qkv, Fp8Linear)
        assert isinstance(layer.mlp, Fp8Gated)
        assert isinstance(layer.mlp_norm, Fp8Norm)
    assert isinstance(model.norm, RMSNorm)
    assert not any(isinstance(module, Gated) for module in model.modules())
    assert sum(parameter.nbytes for parameter in model.layers.parameters()) < 0.4 * before


def test_routers_and_experts_stay() -> None:
    layer = Layer(tiny_spec().layers[0].attention, MoE(4, 2, GatedMLP(16, "silu"), True))
    model = tiny_model(layers=(layer,))
    quantize_fp8(model)
    assert isinstance(model.layers[0].mlp.router, Linear)
    assert isinstance(model.layers[0].mlp_norm, RMSNorm)
    assert isinstance(model.layers[0].attention.out, Fp8Linear)


def test_rounded_matrices_give_nearly_what_plain_ones_give_however_many_rows_there_are() -> None:
    torch.manual_seed(1)
    model, plain = tiny_model(), tiny_model()
    quantize_fp8(model)
    for name in ("attention.qkv", "attention.out", "mlp"):
        rounded, exact = (each.layers[1].get_submodule(name) for each in (model, plain))
        size = 64 if name == "attention.out" else 32
        x = torch.randn((5, size))
        assert _error(rounded(x), exact(x)) < 0.08
        torch.testing.assert_close(rounded(x[:1]), rounded(x)[:1])


def test_a_rounded_model_reads_a_text_whole_or_in_pieces_alike() -> None:
    model = tiny_model()
    quantize_fp8(model)
    (prompt,) = prompts(40)
    plain = all_logits(tiny_model(), prompt)
    assert _error(all_logits(model, prompt), plain) < 0.15
    assert alone(model, Text(prompt, chunk_size=1), 4) == alone(model, Text(prompt), 4)
