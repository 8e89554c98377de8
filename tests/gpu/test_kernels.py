"""Every CUDA kernel equals its operation's definition on this GPU, over all of the operation's examples."""

import copy
import multiprocessing
import os

from tests.gpu import machine
from tests.ops.examples import arguments_of
from tests.ops.parity import cases, same

MAX_PROCESSES = 8
"""Compiling takes nearly all of the time; each process has a context of its own on the GPU."""


def faults_of(share: int, num_shares: int) -> tuple[int, list[str]]:
    """How many kernels were held to their definitions, every so many of them, and what was wrong."""
    faults: list[str] = []
    mine = [(op, kernel) for op, device_type, kernel in cases() if device_type == "cuda"][share::num_shares]
    for op, kernel in mine:
        num_fitting = 0
        for arguments in arguments_of(op, "cuda"):
            if not kernel.fits(*arguments):
                continue
            num_fitting += 1
            computed, defined = copy.deepcopy(arguments), copy.deepcopy(arguments)
            try:
                same(kernel.run(*computed), op.definition(*defined))
                same(computed, defined)
            except Exception as error:
                faults.append(f"{kernel.name}, example {num_fitting}: {type(error).__name__}: {str(error)[:200]}")
        if not num_fitting:
            faults.append(f"{kernel.name} fits no example")
    return len(mine), faults


def test_every_kernel_equals_its_definition() -> None:
    if machine.IS_DRY:
        return
    count = max(min(MAX_PROCESSES, (os.cpu_count() or 1) // 2), 1)
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        found = pool.starmap(faults_of, [(share, count) for share in range(count)])
    faults = [fault for _, each in found for fault in each]
    assert not faults, "\n".join(faults)
    assert sum(number for number, _ in found)
