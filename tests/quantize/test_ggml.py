"""GGUF's blocks are made as llama.cpp makes them: `libgguf` has its functions."""

import numpy as np
import pytest

from penstock.runtime.formats.quants import unpack
from penstock.tools.quantize.ggml import encode

libgguf = pytest.importorskip("libgguf")
pytestmark = pytest.mark.torch
SIMPLE = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SEARCHED = ("Q4_K", "Q5_K", "Q6_K")


def numbers() -> np.ndarray:  # type: ignore[type-arg]
    rows = (np.random.default_rng(0).standard_t(5, (48, 512)) * 0.05).astype(np.float32)
    rows[3], rows[4, :256] = 0, 0.25  # a row of zeros, and blocks of one number
    return rows


def theirs(rows: np.ndarray, dtype: str, importance: np.ndarray | None = None) -> np.ndarray:  # type: ignore[type-arg]
    kind = getattr(libgguf.GGMLQuantizationType, dtype)
    return np.asarray(libgguf.quantize_rows(rows, kind, imatrix=importance)).view(np.uint8).reshape(len(rows), -1)


@pytest.mark.parametrize("dtype", SIMPLE)
def test_plain_blocks_are_the_same_bytes(dtype: str) -> None:
    rows = numbers()
    assert np.array_equal(encode(dtype, rows).view(np.uint8).reshape(len(rows), -1), theirs(rows, dtype))


@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("dtype", [*SEARCHED, "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_searched_blocks_are_as_good_and_nearly_all_the_same(dtype: str, weighs: bool) -> None:
    """Sums in another order decide ties otherwise."""
    rows = numbers()
    importance = (np.random.default_rng(1).random(512) ** 2 + 0.01).astype(np.float32) if weighs else None
    ours, other = encode(dtype, rows, importance), theirs(rows, dtype, importance)
    assert (ours == other).mean() > 0.97
    weights = np.ones(512) if importance is None else importance

    def error(packed: np.ndarray) -> float:  # type: ignore[type-arg]
        return float((weights * (unpack(dtype, packed) - rows) ** 2).sum())

    assert error(ours) == pytest.approx(error(other), rel=0.01)
