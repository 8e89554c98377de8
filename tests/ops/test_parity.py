"""Every kernel equals its operation's definition, in what it returns and in what it writes."""

import copy
import importlib
import pkgutil

import pytest
import torch

import penstock.ops
from penstock.ops.op import OPERATIONS, Kernel, Op

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


for module in pkgutil.iter_modules(penstock.ops.__path__, "penstock.ops."):
    importlib.import_module(module.name)
CASES = [
    (op, device_type, kernel)
    for op in OPERATIONS.values()
    for device_type, kernels in op.kernels.items()
    for kernel in kernels
]


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _same(mine, theirs) -> None:
    pairs = list(zip(_tensors(mine), _tensors(theirs), strict=True))
    for left, right in pairs:
        assert left.dtype == right.dtype
        tolerance = TOLERANCE.get(left.dtype, 0)
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(("op", "device_type", "kernel"), CASES, ids=lambda value: getattr(value, "name", value))
def test_kernel_equals_definition(op: Op, device_type: str, kernel: Kernel) -> None:
    if device_type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    num_fitting = 0
    for arguments in op.examples(torch.device(device_type)):
        if not kernel.fits(*arguments):
            continue
        num_fitting += 1
        mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
        _same(kernel.run(*mine), op.definition(*theirs))
        _same(mine, theirs)
    assert num_fitting, f"{kernel.name} fits none of the examples of {op.name}"


@pytest.mark.parametrize("op", OPERATIONS.values(), ids=lambda op: op.name)
def test_definition_takes_its_own_examples_the_same_every_time(op: Op) -> None:
    examples = zip(op.examples(torch.device("cpu")), op.examples(torch.device("cpu")), strict=True)
    for first, second in examples:
        _same(first, second)
        _same(op.definition(*first), op.definition(*second))


def test_a_kernel_runs_only_where_it_fits() -> None:
    op = Op("double", lambda x: x * 2, lambda device: iter(()))
    op.kernel("cpu", fits=lambda x: x.ndim == 2)(lambda x: x * 200)
    assert op(torch.ones(1)).item() == 2
    assert op(torch.ones(1, 1)).item() == 200


def test_kernels_are_found() -> None:
    assert "attention" in OPERATIONS
    assert any(kernel.name.startswith("cpu.attention") for _, _, kernel in CASES)
