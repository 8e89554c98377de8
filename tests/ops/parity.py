"""What it means for a kernel to equal its definition."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch

import penstock.runtime.ops
from penstock.runtime.ops.op import OPERATIONS, Kernel, Op

TOLERANCE = {
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float8_e4m3fn: (2**-3, 2**-9),
    torch.int8: (0, 1),
}
"""Relative and absolute. Of 8-bit numbers: one step, where a rounding before theirs decides between two."""


def cases() -> list[tuple[Op[..., Any], str, Kernel[..., Any]]]:
    """Every kernel there is, with its operation and the type of device it is for."""
    for module in pkgutil.iter_modules(penstock.runtime.ops.__path__, "penstock.runtime.ops."):
        importlib.import_module(module.name)
    return [
        (op, device_type, kernel)
        for op in OPERATIONS.values()
        for device_type, kernels in op.kernels.items()
        for kernel in kernels
    ]


def has_dtype(value: Any, dtype: torch.dtype) -> bool:
    """Some tensor in it is of the type."""
    return any(tensor.dtype == dtype for tensor in _tensors(value))


def same(mine: Any, theirs: Any) -> None:
    for left, right in zip(_tensors(mine), _tensors(theirs), strict=True):
        assert left.dtype == right.dtype
        relative, absolute = TOLERANCE.get(left.dtype, (0, 0))
        if left.dtype == torch.float8_e4m3fn:
            left, right = left.float(), right.float()
        torch.testing.assert_close(left, right, rtol=relative, atol=absolute, equal_nan=True)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
