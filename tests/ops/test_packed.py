"""Packed matrices hold the numbers they were made of."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ModelFileError
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, arrange, join_rows, multiply, pack, quantize, unpack
from tests.ops.cpu.matrices import KINDS, random_matrix


@pytest.mark.parametrize("kind", KINDS)
@given(num_rows=st.integers(1, 50), num_groups=st.integers(1, 5))
def test_unpacked_is_what_was_packed(kind: str, num_rows: int, num_groups: int) -> None:
    matrix = random_matrix(kind, num_rows, num_groups * GROUP)
    packed = pack(matrix)
    again = unpack(packed)
    assert torch.equal(again.values, matrix.values)
    assert torch.equal(again.scales, matrix.scales)
    assert torch.equal(again.dequantize(), matrix.dequantize())
    assert packed.data.numel() == -(-num_rows // 16) * num_groups * packed.block_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_taken_and_joined_as_floats_are(kind: str) -> None:
    first, second = random_matrix(kind, 7, 64), random_matrix("8 bits", 5, 64)
    order = torch.tensor([6, 0, 3])
    joined = join_rows([first.take(order), second])
    assert torch.equal(joined.dequantize(), torch.cat((first.dequantize()[order], second.dequantize())))


def test_quantizing_errs_by_at_most_half_a_step() -> None:
    weight = torch.randn((9, 96), generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    matrix = quantize(weight)
    most = weight.view(9, -1, GROUP).abs().amax(-1, keepdim=True)
    error = (matrix.dequantize() - weight).view(9, -1, GROUP).abs()
    assert (error <= most / 250).all()


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_floats(kind: str) -> None:
    matrix = random_matrix(kind, 33, 160)
    x = torch.randn((4, 160), generator=torch.Generator().manual_seed(2))
    exact = x @ matrix.dequantize().t()
    assert (multiply(x, pack(matrix)) - exact).norm() < 2e-3 * exact.norm()


def test_four_bits_widen_to_the_same_numbers() -> None:
    matrix = random_matrix("4 bits", 5, 64)
    wide = matrix.widened()
    assert isinstance(wide, Grouped)
    assert wide.bits == 8
    assert torch.equal(wide.dequantize(), matrix.dequantize())


@pytest.mark.parametrize("kind", KINDS)
@given(num_rows=st.integers(1, 9), num_groups=st.integers(1, 6), share=st.sampled_from([1, 2, 3, 4, 8]))
def test_words_hold_the_same_numbers(kind: str, num_rows: int, num_groups: int, share: int) -> None:
    one = random_matrix(kind, num_rows, num_groups * GROUP)
    minimums = None if one.minimums is None else one.minimums.repeat_interleave(share, 1)
    matrix = Grouped(one.values.repeat_interleave(share, 1), one.scales.repeat_interleave(share, 1), minimums)
    words = arrange(matrix)
    assert torch.equal(words.dequantize(), matrix.dequantize())
    assert torch.equal(words.rows(0, 1).dequantize(), matrix.dequantize()[:1])
    assert words.num_columns == matrix.num_columns
    assert words.values_per_word == 32 // matrix.bits
    # As many groups as share their numbers are one, in twos and up to 128 inputs.
    assert words.group % (GROUP * min(share & -share, 4)) == 0


def test_numbers_in_another_order_come_back_in_place() -> None:
    matrix = random_matrix("4 bits", 5, 64)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    shuffled = matrix.with_order(order)
    assert torch.equal(shuffled.dequantize()[:, order], matrix.dequantize())
    assert shuffled.take(torch.tensor([3])).order is order
    with pytest.raises(ModelFileError, match="different orders"):
        join_rows([matrix, shuffled])
