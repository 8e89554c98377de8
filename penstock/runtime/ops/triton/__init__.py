"""Kernels for NVIDIA GPUs, under the file names of the operations they serve."""

from penstock.runtime.ops.triton import (
    activation,
    draw,
    fp8,
    kv_write,
    linear,
    moe,
    norm,
    packed,
    rows,
    sample,
    tiles,
)
from penstock.runtime.ops.triton.attend import decode, runs
from penstock.runtime.ops.triton.grouped import laying, lora
from penstock.runtime.ops.triton.host.launch import settle_keys
from penstock.runtime.ops.triton.kinds import latent

__all__ = [
    "activation",
    "decode",
    "draw",
    "fp8",
    "kv_write",
    "latent",
    "laying",
    "linear",
    "lora",
    "moe",
    "norm",
    "packed",
    "rows",
    "runs",
    "sample",
    "tiles",
]

settle_keys()
