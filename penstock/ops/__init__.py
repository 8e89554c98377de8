"""Operations on tensors. Importing the package registers every kernel that can run here."""

from penstock.ops import cpu

__all__ = ["cpu"]
