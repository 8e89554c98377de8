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
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from threading import Thread

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

from penstock.ops.triton.host.launch import Variant

MAX_PROCESSES = 16
MAX_VARIANTS = 128
IS_NEW = 128
"""A variant's number is one byte, and a bit of it says that it was not compiled before."""

PATIENCE_S = 60.0
"""Silence after which nothing more is expected of them."""


@cache
def prepare() -> Future[None]:
    """Begin, in a thread, with what Triton does before its first kernel: its driver is compiled, its own files are hashed."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            driver.active.get_current_target()
            triton_key()
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done


class Compilers:
    """They take variants in their order. Who lets go of them lets go of what they have not begun."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._waiting = set(range(min(len(variants), MAX_VARIANTS)))
        self.found_new = False
        """Something had to be compiled."""
        self._ended, ended = os.pipe()
        weakref.finalize(self, os.close, self._ended)  # whoever writes to it then, gives up
        target = driver.active.get_current_target()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads' locks: the child asks for none
            child = os.fork()
        if not child:
            _compile_all(variants[:MAX_VARIANTS], target, ended)
        os.close(ended)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)  # it leaves at once: its own children do the work, and are nobody's to wait for

    def are_ready(self, *, wait: bool = False) -> bool:
        """Everything has been compiled, or will not be."""
        while self._waiting:
            has_news = bool(select.select([self._ended], [], [], PATIENCE_S if wait else 0)[0])
            if not has_news and not wait:
                return False
            ended = os.read(self._ended, MAX_VARIANTS) if has_news else b""
            self.found_new |= any(byte & IS_NEW for byte in ended)
            self._waiting -= {byte % IS_NEW for byte in ended} or self._waiting
        return True


def _compile_all(variants: Sequence[Variant], target: GPUTarget, ended: int) -> None:
    """In the child, which never returns."""
    try:
        if os.fork():
            return
        for low, high in ((3, ended), (ended + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(low, high)  # a process that ends is gone for its clients and its GPU, though this one goes on
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
            is_new = True
            with suppress(Exception):
                is_new = _compile(variants[turn[0]], target)
            os.write(ended, bytes([turn[0] | IS_NEW * is_new]))
    finally:
        os._exit(0)


def _compile(variant: Variant, target: GPUTarget) -> bool:
    """Whether it had not been before."""
    found: list[bool] = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit, **rest: found.append(cache_hit)
        kernel = triton.compile(variant.source, target=target, options=variant.options)
    driver.active.launcher_cls(kernel.src, kernel.metadata)  # what calls it is compiled too
    return not all(found)
