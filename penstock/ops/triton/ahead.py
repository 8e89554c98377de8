"""Kernels compiled ahead, by processes beside this one.

Triton's compiler holds the interpreter's lock, so threads would stand in the way of the steps under way. What the processes
make lies in Triton's cache on disk, where a launch finds it. They are forked: they begin with everything imported, touch no
GPU, and leave by `os._exit`. What one of them fails at, the launch that needs it compiles itself and says what is wrong.
"""

import os
import select
import signal
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from penstock.ops.triton.launch import Variant

MAX_PROCESSES = 16
MAX_VARIANTS = 256
"""A variant's number is one byte."""


class Compilers:
    """Variants are taken in their order, so the urgent ones come first."""

    def __init__(self, variants: Sequence[Variant], num_urgent: int) -> None:
        self._urgent = set(range(min(num_urgent, MAX_VARIANTS)))
        self._ended, ended = os.pipe()
        weakref.finalize(self, os.close, self._ended)  # whoever writes to it then, gives up
        target = driver.active.get_current_target()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of locks that other threads hold: the child asks for none
            child = os.fork()
        if not child:
            os.close(self._ended)
            _compile_all(variants[:MAX_VARIANTS], target, ended)
        os.close(ended)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)  # it leaves at once: its own children do the work, and are nobody's to wait for

    def are_ready(self, *, wait: bool = False) -> bool:
        """What is urgent has been compiled, or will not be."""
        while self._urgent and (wait or select.select([self._ended], [], [], 0)[0]):
            numbers = os.read(self._ended, MAX_VARIANTS)
            self._urgent -= set(numbers or self._urgent)
        return not self._urgent


def _compile_all(variants: Sequence[Variant], target: GPUTarget, ended: int) -> None:
    """In the child, which never returns."""
    try:
        if os.fork():
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.nice(5)
        turns, all_turns = os.pipe()
        os.write(all_turns, bytes(range(len(variants))))
        os.close(all_turns)
        for _ in range(min(len(variants), len(os.sched_getaffinity(0)), MAX_PROCESSES) - 1):
            if not os.fork():
                break
        while turn := os.read(turns, 1):
            with suppress(Exception):
                _compile(variants[turn[0]], target)
            os.write(ended, turn)
    finally:
        os._exit(0)


def _compile(variant: Variant, target: GPUTarget) -> None:
    kernel = triton.compile(variant.source, target=target, options=variant.options)
    driver.active.launcher_cls(kernel.src, kernel.metadata)  # what calls it is compiled too
