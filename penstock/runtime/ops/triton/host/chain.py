"""Launches that begin while the one before them ends.

A chained launch is placed on the chip as soon as there is room. It may read weights at once; before it touches anything that
the last launch reads or writes it waits until that is over. What launches before the last one wrote is there from the start:
the last one waited for them, and let this one begin only then. Every kernel launched with `chained()` has to call
`await_others`.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

OLDEST = (9, 0)
"""Compute capability of the first chips that can."""


@triton.jit
def await_others(CHAINS: tl.constexpr):
    """Waits until the last launch is over, and only then lets the next begin: sooner, it takes room from this one."""
    if CHAINS:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def release_next(CHAINS: tl.constexpr):
    """Lets the next launch begin, which then must not touch what the launches before this one write until it has waited."""
    if CHAINS:
        gdc_launch_dependents()


@cache
def chained() -> dict[str, bool]:
    """What a launch is told, for this process's GPU."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < OLDEST:
        return {"CHAINS": False}
    return {"CHAINS": True, "launch_pdl": True}
