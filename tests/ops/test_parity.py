"""Every kernel equals its operation's definition, in what it returns and in what it writes."""

import copy

import pytest
import torch

from penstock.runtime.ops.op import OPERATIONS, Kernel, Op
from tests.ops.examples import arguments_of
from tests.ops.parity import cases, same

CASES = cases()


@pytest.mark.parametrize(("op", "device_type", "kernel"), CASES, ids=lambda value: getattr(value, "name", value))
def test_kernel_equals_definition(op: Op, device_type: str, kernel: Kernel) -> None:
    if device_type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    num_fitting = 0
    for arguments in arguments_of(op, device_type):
        if not kernel.fits(*arguments):
            continue
        num_fitting += 1
        mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
        same(kernel.run(*mine), op.definition(*theirs))
        same(mine, theirs)
    assert num_fitting, f"{kernel.name} fits none of the examples of {op.name}"


@pytest.mark.parametrize("op", OPERATIONS.values(), ids=lambda op: op.name)
def test_definition_takes_its_examples_the_same_every_time(op: Op) -> None:
    for first, second in zip(arguments_of(op), arguments_of(op), strict=True):
        same(first, second)
        same(op.definition(*first), op.definition(*second))


def test_a_kernel_runs_only_where_it_fits() -> None:
    op = Op("double", lambda x: x * 2)
    op.kernel("cpu", fits=lambda x: x.ndim == 2)(lambda x: x * 200)
    assert op(torch.ones(1)).item() == 2
    assert op(torch.ones(1, 1)).item() == 200


def test_kernels_are_found() -> None:
    assert "attention" in OPERATIONS
    assert any(kernel.name.startswith("cpu.attention") for _, _, kernel in CASES)
