"""What has been seen of the tensors that a parameter is made of; numbers that are not finite are refused by name."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import RawTensor, quoted


@dataclass(frozen=True, slots=True)
class TensorAudit:
    """The tensors a recipe has reached, and those in which a number other than zero has been seen."""

    reached: dict[str, RawTensor] = field(default_factory=dict)
    nonzero: set[str] = field(default_factory=set)

    def check(self) -> None:
        """A matrix of nothing but zeros is a file that was never written to the end."""
        for name, raw in self.reached.items():
            if len(raw.shape) > 1 and name not in self.nonzero:
                raise ModelFileError(f"tensor {quoted(name)} is all zeros; the file is damaged: fetch it again")


def check_numbers(name: str, values: Tensor, audit: TensorAudit) -> None:
    # One pass: a sum is finite only if all its terms are.
    if not math.isfinite(values.sum(dtype=torch.float64)):
        raise ModelFileError(
            f"tensor {quoted(name)} holds numbers that are not finite; the file is damaged: fetch it again"
        )
    if name not in audit.nonzero and bool(values.any()):
        audit.nonzero.add(name)
