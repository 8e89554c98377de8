"""The process that compiles kernels for others: python -m penstock.runtime.ops.triton.host.compiler

It has one thread and no GPU, so it may fork: its workers begin with everything imported. It takes a line of JSON a request, a
variant each, and its workers answer a line for each variant they are done with. It ends when nobody writes to it any more.
"""

import json
import os
import select
import signal
import sys
from contextlib import suppress
from importlib import import_module

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

from penstock.runtime.ops.triton.host.launch import Variant, decode_variant

MAX_PROCESSES = 16
IDLE_S = 300.0
"""Without a request it ends; the next request starts another."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the workers
    import_module("penstock.runtime.ops.triton")
    triton_key()
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        _serve(json.loads(line))


def _serve(request: dict[str, object]) -> None:
    told, target = request["variants"], request["target"]
    if not isinstance(told, list) or not isinstance(target, list):
        return
    variants = [decode_variant(each) for each in told]
    turns, all_turns = os.pipe()
    os.write(all_turns, bytes(range(len(variants))))
    os.close(all_turns)
    for _ in range(min(len(variants), len(os.sched_getaffinity(0)), MAX_PROCESSES)):
        if not os.fork():
            _work(variants, GPUTarget(*target), turns, str(request["request"]))
    os.close(turns)


def _work(variants: list[Variant], target: GPUTarget, turns: int, request: str) -> None:
    """In a worker, which never returns. What it fails at, the launch that needs it compiles itself and says what is wrong."""
    try:
        os.nice(5)
        while turn := os.read(turns, 1):
            is_new = True
            with suppress(Exception):
                is_new = compile_variant(variants[turn[0]], target)
            os.write(1, f"{request} {turn[0]} {int(is_new)}\n".encode())  # fails once the reader is gone
    finally:
        os._exit(0)


def compile_variant(variant: Variant, target: GPUTarget) -> bool:
    """Whether it had not been before."""
    found: list[bool] = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit, **rest: found.append(cache_hit)
        kernel = triton.compile(variant.source, target=target, options=variant.options)
    with suppress(Exception):  # where there is no GPU there is nothing to call it with
        driver.active.launcher_cls(kernel.src, kernel.metadata)  # what calls it is compiled too
    return not all(found)


if __name__ == "__main__":
    main()
