"""Operations on tensors. Importing the package registers every kernel that can run here."""

from importlib.util import find_spec

from penstock.ops import cpu

__all__ = ["cpu"]

if find_spec("triton") is not None:
    from penstock.ops import triton

    __all__ += ["triton"]
