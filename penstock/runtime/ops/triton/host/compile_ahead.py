"""Kernels compiled ahead, by processes beside this one.

Triton's compiler holds the interpreter's lock, so threads would stand in the way of the steps under way. What the processes
make lies in Triton's cache on disk, where a launch finds it. This process, with its threads and its GPU, is never forked: a
helper is begun afresh when a device is opened, and has imported everything by the time the first variants are asked for.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from itertools import count
from threading import Thread

from triton.runtime import driver
from triton.runtime.cache import triton_key

from penstock.runtime.ops.triton.host.launch import Variant, encode_variant

MAX_VARIANTS = 128
PATIENCE_S = 60.0
"""Silence after which nothing more is expected of them."""
COMMAND = (
    *("/usr/bin/env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"),
    *(sys.executable, "-m", "penstock.runtime.ops.triton.host.compiler"),
)
"""With one thread, so that it may fork."""


@cache
def prepare() -> Future[None]:
    """Begin, in a thread, with what Triton does before its first kernel: its driver is compiled, its own files are hashed.

    The helper begins with it.
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
    """The helper's process, and what its workers have answered."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._rest = b""
        self._answers: dict[int, list[tuple[int, bool]]] = {}

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, number: int, variants: Sequence[Variant]) -> None:
        """OSError if it is gone."""
        target = driver.active.get_current_target()
        request = {
            "request": number,
            "variants": [encode_variant(variant) for variant in variants],
            "target": [target.backend, target.arch, target.warp_size],
        }
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def answers(self, number: int, wait_s: float) -> list[tuple[int, bool]] | None:
        """(Variant, whether it was compiled anew) of a request since the last call; None once no more can come."""
        out = self._process.stdout
        if out is None or number in self._answers:
            return self._answers.pop(number, None)
        if not select.select([out], [], [], wait_s)[0]:
            return []
        read = os.read(out.fileno(), 1 << 16)
        if not read:
            return None
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            request, variant, is_new = map(int, line.split())
            self._answers.setdefault(request, []).append((variant, bool(is_new)))
        return self._answers.pop(number, [])

    def end(self) -> None:
        """Workers give up with their next answer."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait()


class CompileHelpers:
    """The one helper of this process; another is begun where it has ended."""

    def __init__(self) -> None:
        self._helper: CompileHelper | None = None
        self._numbers = count()

    def begin(self) -> CompileHelper:
        if self._helper is None or not self._helper.is_alive:
            self.end()
            self._helper = CompileHelper(COMMAND)
        return self._helper

    def ask(self, variants: Sequence[Variant]) -> tuple[CompileHelper, int]:
        number = next(self._numbers)
        try:
            helper = self.begin()
            helper.ask(number, variants)
        except OSError:  # it ended at this very moment
            self.end()
            helper = self.begin()
            helper.ask(number, variants)
        return helper, number

    def end(self) -> None:
        if self._helper is not None:
            self._helper.end()
            self._helper = None


HELPERS = CompileHelpers()


class Compilers:
    """A request for variants, which are taken in their order."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        wanted = variants[:MAX_VARIANTS]
        self._waiting = set(range(len(wanted)))
        self.found_new = False
        """Something had to be compiled."""
        self._helper, self._number = HELPERS.ask(wanted)

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
