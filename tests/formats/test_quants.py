"""Every number format equals the reference of the `gguf` package, bit for bit."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import RawTensor
from penstock.runtime.formats.quants import BLOCKS, dequantize, dequantize_rows, unpack

DECODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
DECODED += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]

HALVES = {  # where the half-precision scales of a block lie
    **dict.fromkeys(("F16", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("F32", "BF16", "MXFP4"), ()),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_rows(dtype: str, num_rows: int, num_blocks: int, seed: int) -> np.ndarray:
    """Random bytes whose half-precision scales are finite: both signs, denormals and extremes included."""
    rng = np.random.default_rng(seed)
    num_bytes = BLOCKS[dtype].num_bytes
    blocks = rng.integers(0, 256, (num_rows * num_blocks, num_bytes), dtype=np.uint8)
    for start in HALVES[dtype]:
        halves = np.ascontiguousarray(blocks[:, start : start + 2]).view("<u2")
        halves[(halves & 0x7C00) == 0x7C00] &= 0x83FF
        extremes = np.array([0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x0001, 0x8001], dtype="<u2")
        halves[: len(extremes), 0] = extremes[: len(halves)]
        blocks[:, start : start + 2] = halves.view(np.uint8)
    return blocks.reshape(num_rows, num_blocks * num_bytes)


def raw_tensor(dtype: str, rows: np.ndarray, shape: tuple[int, ...]) -> RawTensor:
    return RawTensor("weight", dtype, shape, rows.reshape(-1))


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype == np.float32
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all()


@pytest.mark.parametrize("dtype", DECODED)
@pytest.mark.parametrize("seed", range(3))
def test_values_equal_the_reference_bit_for_bit(dtype: str, seed: int) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    assert tuple(BLOCKS[dtype]) == gguf.GGML_QUANT_SIZES[kind]
    rows = random_rows(dtype, 33, 5, seed)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False).reshape(33, -1)
    assert_same_bits(unpack(dtype, rows), expected)


@pytest.mark.parametrize("dtype", DECODED)
def test_groups_of_rows_make_no_difference(dtype: str) -> None:
    """More values than are decoded at a time equal the same rows decoded one by one."""
    num_blocks = 4096 // BLOCKS[dtype].num_values
    rows = random_rows(dtype, 40, num_blocks, 7)
    single = np.concatenate([unpack(dtype, rows[index : index + 1]) for index in range(40)])
    assert_same_bits(unpack(dtype, rows), single)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_of_rows_is_that_range_of_the_whole(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DECODED))
    num_rows = data.draw(st.integers(1, 12))
    block = BLOCKS[dtype]
    rows = random_rows(dtype, 2 * num_rows, 2, 1)
    raw = raw_tensor(dtype, rows, (2, num_rows, 2 * block.num_values))
    chosen = data.draw(st.slices(2 * num_rows))
    whole = dequantize(raw)
    assert whole.shape == raw.shape
    assert_same_bits(dequantize_rows(raw, chosen), whole.reshape(2 * num_rows, -1)[chosen])


def test_rows_can_be_permuted_before_decoding() -> None:
    rows = random_rows("Q6_K", 8, 2, 3)
    order = np.random.default_rng(0).permutation(8)
    assert_same_bits(unpack("Q6_K", rows[order]), unpack("Q6_K", rows)[order])


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 3, 4), (0, 4), (4, 0)])
def test_any_shape_comes_back(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype="<f4").reshape(shape)
    raw = raw_tensor("F32", np.frombuffer(values.tobytes(), np.uint8), shape)
    found = dequantize(raw)
    assert found.shape == shape
    assert (found == values).all()
    assert found.flags.writeable


def test_a_type_without_a_decoder_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"I64.*these can"):
        dequantize(raw_tensor("I64", np.zeros(8, np.uint8), (1,)))


def test_part_of_a_block_is_refused() -> None:
    with pytest.raises(ModelFileError, match="19 bytes"):
        unpack("Q4_0", np.zeros((2, 19), np.uint8))
