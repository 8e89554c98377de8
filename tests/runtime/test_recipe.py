"""A recipe read slice by slice gives what the same steps give on whole arrays."""

import numpy as np
import pytest
import torch

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit
from penstock.runtime.execution.load.recipe import open_recipe
from penstock.runtime.models.weights import Concat, HalvesPaired, Mxfp4, Plus, Recipe, Stack, Swap, Take, Tensor
from tests.runtime.files import checkpoint

SOURCE = np.random.default_rng(0)
A, B = SOURCE.standard_normal((2, 12, 8)).astype(np.float32)
C, D = SOURCE.standard_normal((2, 3, 4, 6)).astype(np.float16)
V = SOURCE.standard_normal(24).astype(np.float32)
FILE = checkpoint(a=A, b=B, c=C, d=D, v=V)


def paired(rows: np.ndarray, num_heads: int) -> np.ndarray:
    size = len(rows) // num_heads
    order = [head * size + place for head in range(num_heads) for place in [*range(0, size, 2), *range(1, size, 2)]]
    return rows[order]


CASES: list[tuple[Recipe, np.ndarray]] = [
    (Tensor("a"), A),
    (Tensor("v"), V),
    (Tensor("c"), C),
    (Concat((Tensor("a"), Tensor("b"))), np.concatenate((A, B))),
    (Concat((Tensor("v"), Tensor("v"))), np.concatenate((V, V))),
    (Concat((Tensor("c"), Tensor("d")), axis=1), np.concatenate((C, D), axis=1)),
    (Concat((Tensor("a"), Tensor("b")), axis=1), np.concatenate((A, B), axis=1)),
    (Concat((Tensor("c"), Tensor("d"))), np.concatenate((C, D))),
    (Stack((Tensor("a"), Tensor("b"))), np.stack((A, B))),
    (Stack((Tensor("v"), Tensor("v"))), np.stack((V, V))),
    (Take(Tensor("a"), 1, 10, 3), A[1:10:3]),
    (Take(Tensor("a"), 2, 8, 2, axis=1), A[:, 2:8:2]),
    (Take(Tensor("v"), 1, 24, 2), V[1::2]),
    (Take(Tensor("c"), 1, 3), C[1:3]),
    (Take(Tensor("c"), 0, 4, 2, axis=1), C[:, ::2]),
    (Swap(Tensor("a")), A.T),
    (Swap(Tensor("c")), C.swapaxes(1, 2)),
    (HalvesPaired(Tensor("a"), 3), paired(A, 3)),
    (HalvesPaired(Tensor("v"), 2), paired(V, 2)),
    (Plus(Tensor("v"), 1.0), V + 1),
    (Plus(Swap(Tensor("c")), -2.0), C.swapaxes(1, 2).astype(np.float32) - 2),
]


@pytest.mark.parametrize(("recipe", "expected"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("size", [1, 5, 100])
def test_slices_make_the_whole(recipe: Recipe, expected: np.ndarray, size: int) -> None:
    source = open_recipe(recipe, FILE, TensorAudit())
    assert source.shape == expected.shape
    torch.testing.assert_close(_read(source, size), torch.from_numpy(expected.astype(np.float32)))


def _read(source, size: int) -> torch.Tensor:
    if len(source.shape) > 2:
        return torch.stack([_read(source.item(index), size) for index in range(source.shape[0])])
    starts = range(0, source.shape[0], size)
    return torch.cat([source.read(start, min(start + size, source.shape[0])) for start in starts])


def test_mxfp4_is_two_to_a_byte_low_first() -> None:
    blocks = np.zeros((2, 1, 16), dtype=np.uint8)
    blocks[0, 0, 0], blocks[1, 0, 15] = 0x72, 0xF9
    scales = np.array([[127], [128]], dtype=np.uint8)
    source = open_recipe(Mxfp4("blocks", "scales"), checkpoint(blocks=blocks, scales=scales), TensorAudit())
    numbers = source.read(0, 2)
    assert source.shape == (2, 32)
    assert numbers[0, :2].tolist() == [1.0, 6.0]
    assert numbers[1, -2:].tolist() == [-1.0, -12.0]
    assert int(numbers.count_nonzero()) == 4


@pytest.mark.parametrize(
    "recipe",
    [
        Concat((Tensor("a"), Tensor("c"))),
        Stack((Tensor("a"), Tensor("v"))),
        HalvesPaired(Tensor("a"), 5),
        Mxfp4("a", "b"),
    ],
    ids=lambda recipe: type(recipe).__name__,
)
def test_shapes_that_do_not_fit_are_refused(recipe: Recipe) -> None:
    with pytest.raises(ModelFileError):
        _ = open_recipe(recipe, FILE, TensorAudit()).shape
