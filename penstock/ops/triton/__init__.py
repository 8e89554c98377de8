"""Kernels for NVIDIA GPUs, under the file names of the operations they serve."""

from penstock.ops.triton import activation, attention, draw, kv_write, linear, moe, norm, rows

__all__ = ["activation", "attention", "draw", "kv_write", "linear", "moe", "norm", "rows"]
