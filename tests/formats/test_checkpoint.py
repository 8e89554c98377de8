from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import RawTensor, TensorTable, quoted


def raw(name: str, shape: tuple[int, ...]) -> RawTensor:
    return RawTensor(name, "F16", shape, np.zeros(2 * int(np.prod(shape)), np.uint8))


@pytest.mark.parametrize(
    ("shape", "num_rows", "row_size"), [((), 1, 1), ((5,), 1, 5), ((3, 5), 3, 5), ((2, 3, 5), 6, 5), ((0, 5), 0, 5)]
)
def test_rows_and_sizes_multiply_out(shape: tuple[int, ...], num_rows: int, row_size: int) -> None:
    tensor = raw("weight", shape)
    assert (tensor.num_rows, tensor.row_size) == (num_rows, row_size)
    assert tensor.num_values == num_rows * row_size
    assert tensor.num_bytes == tensor.num_rows * tensor.row_bytes
    assert tensor.rows.shape == (num_rows, tensor.row_bytes)


def test_an_absent_tensor_is_named_with_its_neighbours() -> None:
    table = TensorTable(Path("some.gguf"), {"blk.0.attn_q.weight": raw("blk.0.attn_q.weight", (2,))})
    with pytest.raises(ModelFileError, match=r"no tensor 'blk.0.attn_k.weight'; it has 'blk.0.attn_q.weight'"):
        table.tensor("blk.0.attn_k.weight")


def test_a_closed_checkpoint_says_so_and_its_tensors_live_on() -> None:
    table = TensorTable(Path("some.gguf"), {"weight": raw("weight", (2,))})
    tensor = table.tensor("weight")
    table.close()
    assert tensor.data.sum() == 0
    with pytest.raises(ModelFileError, match="closed"):
        table.tensor("weight")


def test_quoted_values_stay_short_and_printable() -> None:
    assert len(quoted("x" * 100_000)) < 200
    assert len(quoted(["y" * 1000] * 1000)) < 1000
    assert quoted("a\n\x1b[31m").isprintable()
