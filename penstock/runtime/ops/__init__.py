"""Operations on tensors. Importing the package registers every kernel that can run here."""

from importlib.util import find_spec

import torch

from penstock.runtime.ops import cpu

__all__ = ["cpu"]

if torch.cuda.is_available() and find_spec("triton") is not None:
    from penstock.runtime.ops import triton

    __all__ += ["triton"]
