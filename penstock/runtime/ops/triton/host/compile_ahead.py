"""Kernels compiled ahead, by processes beside this one.

Triton's compiler holds the interpreter's lock, so threads would stand in the way of the steps under way. What the processes
make lies in Triton's cache on disk, where a launch finds it. No process with threads is ever forked: workers are begun afresh,
a server's before it imports torch and others' when a device is opened, and have imported everything by the time the weights are
there.
"""

import json
import select
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from itertools import count
from threading import Thread

from triton.runtime import driver
from triton.runtime.cache import triton_key

from penstock.runtime import preload
from penstock.runtime.ops.triton.host.launch import Variant, encode_variant

PATIENCE_S = 60.0
"""Silence after which nothing more is expected of them."""


@cache
def prepare() -> Future[None]:
    """Begin, in a thread, with what Triton does before its first kernel: its driver is compiled, its own files are hashed.

    The workers begin with it.
    """
    done: Future[None] = Future()
    HELPERS.begin()

    def run() -> None:
        try:
            driver.active.get_current_target()
            triton_key()
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done


class CompileHelper:
    """What was asked of a pool of workers, and what they have answered."""

    def __init__(self, pool: preload.CompilerPool) -> None:
        self.pool = pool
        self._rest = b""
        self._answers: dict[int, list[tuple[int, bool]]] = {}
        self._num_pending = 0
        """Variants asked for that no worker has answered."""

    def ask(self, number: int, variants: Sequence[Variant]) -> None:
        """Hand variants over, in a thread: the socket holds few, and workers take none before they have imported Triton."""
        target = driver.active.get_current_target()
        described = [target.backend, target.arch, target.warp_size]
        self._num_pending += len(variants)

        def send() -> None:
            with suppress(OSError):  # they are gone: nobody waits for them
                for place, variant in enumerate(variants):
                    message = {"id": [number, place], "variant": encode_variant(variant), "target": described}
                    self.pool.requests.send(json.dumps(message).encode())

        Thread(target=send, daemon=True).start()

    def answers(self, number: int, wait_s: float) -> list[tuple[int, bool]] | None:
        """(Variant, whether it was compiled anew) of a request since the last call; None once no more can come.

        Waits while answers come, also those of other requests; empty after a silence of `wait_s`.
        """
        while number not in self._answers:
            if not select.select([self.pool.answered], [], [], wait_s)[0]:
                return []
            if not self._read():
                return None
        return self._answers.pop(number)

    def wait(self, patience_s: float) -> None:
        """Until every variant that was asked for is answered, whoever asked, or none has been for so long."""
        while self._num_pending and select.select([self.pool.answered], [], [], patience_s)[0] and self._read():
            pass

    def _read(self) -> bool:
        """Take in answers; False if no more can come."""
        read = self.pool.answered.read(1 << 16)
        *lines, self._rest = (self._rest + (read or b"")).split(b"\n")
        for line in lines:
            request, variant, is_new = map(int, line.split())
            self._answers.setdefault(request, []).append((variant, bool(is_new)))
        self._num_pending -= len(lines)
        return bool(read)


class CompileHelpers:
    """The workers of this process; others are begun where they have ended."""

    def __init__(self) -> None:
        self._helper: CompileHelper | None = None
        self._numbers = count()

    def begin(self) -> CompileHelper:
        if self._helper is None or not self._helper.pool.is_alive:
            self.end()
            self._helper = CompileHelper(preload.take_compilers())
        return self._helper

    def ask(self, variants: Sequence[Variant]) -> tuple[CompileHelper, int]:
        number, helper = next(self._numbers), self.begin()
        helper.ask(number, variants)
        return helper, number

    def wait(self) -> None:
        """Until everything that this process has asked for is compiled."""
        if self._helper is not None:
            self._helper.wait(PATIENCE_S)

    def end(self) -> None:
        if self._helper is not None:
            self._helper.pool.end()
            self._helper = None


HELPERS = CompileHelpers()


class Compilers:
    """A request for variants, which are taken in their order."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.num_variants = len(variants)
        self._waiting = set(range(self.num_variants))
        self.found_new = False
        """Something had to be compiled."""
        self._helper, self._number = HELPERS.ask(variants)

    def are_ready(self, *, wait: bool = False) -> bool:
        """Everything has been compiled, or will not be."""
        while self._waiting:
            answers = self._helper.answers(self._number, PATIENCE_S if wait else 0.0)
            if answers is None or (wait and not answers):
                self._waiting.clear()
                break
            if not answers:
                return False
            self.found_new |= any(is_new for _, is_new in answers)
            self._waiting -= {variant for variant, _ in answers}
        return True
