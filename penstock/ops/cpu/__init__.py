"""Kernels for CPUs, under the file names of the operations they serve."""

from penstock.ops.cpu import attention

__all__ = ["attention"]
