"""What an engine's steps consist of, part by part, while they are watched: the native library's own marks, or a GPU's kernels.

Watching costs a clock reading a part on a CPU. On a GPU the driver's own record is read, of recorded graphs too.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.ops.cpu.library import PARTS

MAX_MARKS = 1 << 20
KERNEL_KINDS = {
    "attention": "attend attention flash decode_ _split paged _merge _combine",
    "sampling": "sample draw argmax sort topk softmax cumsum multinomial",
    "experts": "moe expert _pairs _down",
    "linears": "gemm small_batch _one nvjet cutlass cublas gemv matmul sm90_ _tiles packed",
    "copies": "memcpy memset copy",
    "pointwise": "norm _place rope rotate kv_write activation elementwise embed index gather add",
}
"""A kernel belongs to the first kind of which its name holds a word."""
CPU_KINDS = ("qkv", "out", "gate_up", "down", "attention", "output")
"""Parts of a native step that are kinds of their own."""


class TracedPart(NamedTuple):
    name: str
    kind: str
    start_s: float
    """From when watching began."""
    seconds: float
    layer: int = -1


def kind_of(kernel: str) -> str:
    lowered = kernel.lower()
    return next(
        (kind for kind, words in KERNEL_KINDS.items() if any(word in lowered for word in words.split())), "other"
    )


@contextmanager
def watched(network: object, device: torch.device) -> Iterator[list[TracedPart]]:
    """The list is filled when the block ends."""
    found: list[TracedPart] = []
    if isinstance(network, NativeDecoder):
        library = network.library
        begin_ns = time.monotonic_ns()
        marks = library.trace(MAX_MARKS)
        yield found
        count = library.end_trace()
        found += _of_marks([(mark.time_ns - begin_ns, mark.part, mark.layer) for mark in marks[:count]])
    else:
        yield from _by_torch(found, device)


def _of_marks(marks: list[tuple[int, int, int]]) -> Iterator[TracedPart]:
    """A part lasts from the mark before it; what lies before a start belongs to no part."""
    before_ns = 0
    for time_ns, part, layer in marks:
        name = PARTS[part]
        if name != "start" and before_ns:
            kind = name if name in CPU_KINDS else "pointwise"
            yield TracedPart(name, kind, before_ns / 1e9, (time_ns - before_ns) / 1e9, layer)
        before_ns = time_ns


def _by_torch(found: list[TracedPart], device: torch.device) -> Iterator[list[TracedPart]]:
    from torch.profiler import ProfilerActivity, profile

    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize(device)
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        yield found
        if is_cuda:
            torch.cuda.synchronize(device)
    events = [one for one in seen.events() or () if _is_computed(one, is_cuda)]
    events.sort(key=lambda one: one.time_range.start)
    begin_us = end_us = events[0].time_range.start if events else 0.0
    for one in events:
        # A kernel is launched while the one before it runs and waits for it: what counts is what it adds.
        added_us = one.time_range.end - max(one.time_range.start, end_us)
        end_us = max(end_us, one.time_range.end)
        seconds = max(added_us, 0.0) / 1e6 if is_cuda else one.self_cpu_time_total / 1e6
        found.append(TracedPart(one.name, kind_of(one.name), (one.time_range.start - begin_us) / 1e6, seconds))


def _is_computed(event: Any, is_cuda: bool) -> bool:
    if is_cuda:
        return str(event.device_type).endswith("CUDA")
    return bool(event.name.startswith("aten::") and event.self_cpu_time_total > 0)
