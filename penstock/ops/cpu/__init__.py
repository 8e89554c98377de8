"""Kernels for CPUs, under the file names of the operations they serve."""

from penstock.ops.cpu import attention, sampling

__all__ = ["attention", "sampling"]
