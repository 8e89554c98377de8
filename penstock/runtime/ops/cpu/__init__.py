"""Kernels for CPUs, under the file names of the operations they serve."""

from penstock.runtime.ops.cpu import attention, sampling

__all__ = ["attention", "sampling"]
