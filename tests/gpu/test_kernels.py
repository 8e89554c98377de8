"""Every CUDA kernel equals its operation's definition on this GPU, over all of the operation's examples."""

import copy

import torch

from tests.gpu import machine
from tests.ops.parity import cases, same


def test_every_kernel_equals_its_definition() -> None:
    faults: list[str] = []
    num_kernels = 0
    for op, device_type, kernel in cases():
        if device_type != "cuda" or machine.IS_DRY:
            continue
        num_kernels += 1
        num_fitting = 0
        for arguments in op.examples(torch.device("cuda")):
            if not kernel.fits(*arguments):
                continue
            num_fitting += 1
            mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
            try:
                same(kernel.run(*mine), op.definition(*theirs))
                same(mine, theirs)
            except Exception as error:
                faults.append(f"{kernel.name}, example {num_fitting}: {type(error).__name__}: {str(error)[:200]}")
        if not num_fitting:
            faults.append(f"{kernel.name} fits no example")
    assert not faults, "\n".join(faults)
    assert num_kernels or machine.IS_DRY
