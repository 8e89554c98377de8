"""Grouped weights are the file's numbers: exactly, or as near as `grouping` says."""

import numpy as np
import pytest
import torch

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit
from penstock.runtime.execution.load.grouping import group_recipe
from penstock.runtime.execution.load.recipe import open_recipe
from penstock.runtime.formats.checkpoint import RawTensor
from penstock.runtime.formats.quants import BLOCKS, dequantize
from penstock.runtime.models.weights import Concat, HalvesPaired, Take, Tensor
from penstock.runtime.ops.quantized.packed import GROUP

EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
SCALE_ROUNDED = ("Q4_K", "Q5_K")
REQUANTIZED = ("Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS", "F16")
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
"""Where a block's half-precision numbers stand: random bytes there would not be numbers a model has."""


class Files:
    """Random tensors of one number format, by name."""

    def __init__(self, dtype: str, num_rows: int = 12, num_columns: int = 512) -> None:
        generator = np.random.default_rng(3)
        self.tensors = {}
        for name in ("a", "b"):
            num_values, num_bytes = BLOCKS[dtype]
            shape = (num_rows, num_columns // num_values, num_bytes)
            blocks = generator.integers(0, 256, shape, dtype=np.uint8)
            for at in HALVES.get(dtype, ()):
                numbers = generator.uniform(0.001, 0.1, shape[:2]).astype("<f2")
                blocks[:, :, at : at + 2] = numbers[..., None].view(np.uint8)
            if dtype == "F16":
                blocks = generator.normal(size=shape[:2]).astype("<f2").view(np.uint8)
            self.tensors[name] = RawTensor(name, dtype, (num_rows, num_columns), blocks.reshape(-1))
        self.names = tuple(self.tensors)

    def tensor(self, name: str) -> RawTensor:
        return self.tensors[name]

    def close(self) -> None:
        """Nothing is open."""


def grouped_and_plain(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    files = Files(dtype)
    grouped = group_recipe(Tensor("a"), files, TensorAudit())
    return grouped.dequantize(), torch.from_numpy(dequantize(files.tensor("a")))


@pytest.mark.parametrize("dtype", EXACT)
def test_formats_in_groups_of_32_are_kept_exactly(dtype: str) -> None:
    mine, theirs = grouped_and_plain(dtype)
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", SCALE_ROUNDED)
def test_folded_scales_are_rounded_to_half_precision(dtype: str) -> None:
    mine, theirs = grouped_and_plain(dtype)
    # Both the scaled value and the minimum are rounded by at most 2^-11 of themselves.
    largest = theirs.view(12, -1, GROUP).abs().amax(-1, keepdim=True).expand(-1, -1, GROUP).reshape(theirs.shape)
    spread = theirs.view(12, -1, GROUP)
    span = (spread.amax(-1) - spread.amin(-1)).repeat_interleave(GROUP, 1)
    assert ((mine - theirs).abs() <= (largest + span) * 2**-10).all()


@pytest.mark.parametrize("dtype", REQUANTIZED)
def test_other_formats_come_within_a_step(dtype: str) -> None:
    mine, theirs = grouped_and_plain(dtype)
    most = theirs.view(12, -1, GROUP).abs().amax(-1).repeat_interleave(GROUP, 1)
    assert ((mine - theirs).abs() <= most / 250).all()


@pytest.mark.parametrize(
    "recipe",
    [
        Concat((Tensor("a"), Tensor("b"))),
        HalvesPaired(Tensor("a"), 3),
        Take(Concat((Tensor("a"), Tensor("b"))), 1, 23, 2),
        Concat((HalvesPaired(Tensor("b"), 2), Take(Tensor("a"), 0, 4))),
    ],
)
def test_recipes_move_groups_as_they_move_floats(recipe: Concat | HalvesPaired | Take) -> None:
    files = Files("Q4_1")
    source = open_recipe(recipe, files, TensorAudit())
    assert torch.equal(group_recipe(recipe, files, TensorAudit()).dequantize(), source.read(0, source.shape[0]))


def test_a_scale_that_is_no_number_is_refused_by_name() -> None:
    files = Files("Q8_0")
    data = files.tensor("a").data.copy()
    data[:2] = np.array([np.nan], dtype="<f2").view(np.uint8)
    files.tensors["a"] = RawTensor("a", "Q8_0", (12, 512), data)
    with pytest.raises(ModelFileError, match="'a' holds numbers that are not finite"):
        group_recipe(Tensor("a"), files, TensorAudit())
