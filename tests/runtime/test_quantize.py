"""A model of 8-bit floats is nearly the model it was made from, and what must not be rounded is not."""

import torch

from penstock.runtime.execution.load.parameters import dummy_model, fill_dummy
from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.layers.build import build_model
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.quantized.fp8 import Fp8Gated, Fp8Linear, Fp8Norm
from penstock.runtime.models.spec import MLA, GatedMLP, Layer, MoE, Rope
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


def test_layers_are_rounded_one_by_one_as_they_are_filled() -> None:
    """A device need not have room for 16 bits: when a layer is finished, the next has no numbers yet."""
    spec, filled = tiny_spec(), []
    model = build_model(spec, torch.bfloat16)

    def finish(layer: torch.nn.Module) -> None:
        filled.append([not next(one.parameters()).is_meta for one in model.layers])
        quantize_fp8(layer)

    fill_dummy(model, torch.device("cpu"), finish=finish)
    count = len(model.layers)
    assert count > 1
    assert filled == [[place <= number for place in range(count)] for number in range(count)]
    whole = dummy_model(spec, torch.device("cpu"), torch.bfloat16)
    quantize_fp8(whole)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in whole.named_parameters()]
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), whole.parameters()))


def test_latents_are_made_keys_and_values_of_in_16_bits() -> None:
    layers = (Layer(MLA(2, 24, 16, 16, Rope(8), 0.2), GatedMLP(64, "silu")),) * 2
    model, plain = tiny_model(layers=layers), tiny_model(layers=layers)
    quantize_fp8(model)
    (prompt,) = prompts(40)
    assert _error(all_logits(model, prompt), all_logits(plain, prompt)) < 0.15
