"""A process that compiles kernels for another: python -m penstock.runtime.ops.triton.host.compiler

It takes messages from the socket that is its input, a variant each, and writes a line for each variant it is done with. It ends
when nobody holds the other end any more, or when nothing was asked for a while.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from importlib import import_module

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

from penstock.runtime.ops.triton.host.launch import Variant, decode_variant

IDLE_S = 300.0
MAX_MESSAGE_BYTES = 1 << 18


def main() -> None:
    """What a worker fails at, the launch that needs it compiles itself and says what is wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_module("penstock.runtime.ops.triton")
    triton_key()
    with socket.socket(fileno=0) as requests, suppress(OSError):  # nobody asks, or nobody listens
        requests.settimeout(IDLE_S)
        while message := requests.recv(MAX_MESSAGE_BYTES):
            asked = json.loads(message)
            is_new = True
            with suppress(Exception):
                is_new = compile_variant(decode_variant(asked["variant"]), GPUTarget(*asked["target"]))
            os.write(1, " ".join(map(str, (*asked["id"], int(is_new)))).encode() + b"\n")


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
