"""What this machine reaches: bytes read a second and operations a second, through torch, in a few seconds.

The best of several short runs counts: whatever disturbs a run makes it slower, never faster.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

RUN_S = 0.05
NUM_RUNS = 4
MIB = 2**20
LARGE_BYTES = 256 * MIB
"""Beyond every cache of a processor."""
NUM_ROWS = 512
FEW_ROWS = 32
WIDTH = 2048
QUICK_ROWS = 128
QUICK_WIDTH = 1024
GPU_WIDTH = 4096


class Reached(NamedTuple):
    """Bytes and operations a second; 0 where torch has no such product here."""

    large_bytes_per_s: float
    """Reading a buffer that no cache holds."""
    model_bytes_per_s: float
    """Reading a buffer as large as the model that was asked about: some of it may stay in a cache."""
    flops: dict[str, float]


def product_rate(num_threads: int) -> float:
    """Operations a second of small products on this processor, of the number type it is best at; some 30 ms."""
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return max(_quick_rate(dtype) for dtype in (torch.float32, torch.bfloat16))
    finally:
        torch.set_num_threads(usual)


def gpu_product_rate(device: torch.device) -> float:
    """Operations a second of products in bfloat16, with real numbers: those of ones alone are faster. A millisecond or two."""
    with torch.inference_mode():
        rows, matrix = torch.randn((2, GPU_WIDTH, GPU_WIDTH), device=device, dtype=torch.bfloat16)
    return 2.0 * GPU_WIDTH**3 / min(_timed(lambda: rows @ matrix, 1, device) for _ in range(NUM_RUNS))


def measure_ceilings(device: torch.device, model_bytes: int, num_threads: int) -> Reached:
    """With that many of torch's threads, whatever it is set to otherwise."""
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return _measure(device, model_bytes)
    finally:
        torch.set_num_threads(usual)


def _measure(device: torch.device, model_bytes: int) -> Reached:
    large = _read_rate(device, LARGE_BYTES)
    model = _read_rate(device, min(max(model_bytes, MIB), LARGE_BYTES))
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    flops = {name: _rate(device, dtype, torch.matmul) for name, dtype in dtypes.items()}
    return Reached(large, model, flops | {"int8": _int8_rate(device)})


def _read_rate(device: torch.device, num_bytes: int) -> float:
    """Summing reads every byte once and writes next to nothing."""
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / _fastest_s(lambda: buffer.sum(), device)


def _rate(device: torch.device, dtype: torch.dtype, multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Operations a second of a product; of few rows where this machine has no quick way for such numbers."""
    try:
        matrix = torch.ones((WIDTH, WIDTH), dtype=dtype, device=device)
        rate = 0.0
        for num_rows in (FEW_ROWS, NUM_ROWS):
            rows = torch.ones((num_rows, WIDTH), dtype=dtype, device=device)
            operations = 2.0 * num_rows * WIDTH * WIDTH
            rate = max(rate, operations / _fastest_s(partial(multiply, rows, matrix), device))
            if operations / rate > RUN_S:
                break
        return rate
    except RuntimeError:
        return 0.0


def _quick_rate(dtype: torch.dtype) -> float:
    cpu = torch.device("cpu")
    rows, matrix = (torch.ones((count, QUICK_WIDTH), dtype=dtype) for count in (QUICK_ROWS, QUICK_WIDTH))
    fastest_s = min(_timed(lambda: rows @ matrix, 1, cpu) for _ in range(NUM_RUNS + 1))  # the first prepares
    return 2.0 * QUICK_ROWS * QUICK_WIDTH * QUICK_WIDTH / max(fastest_s, 1e-9)


def _int8_rate(device: torch.device) -> float:
    multiply = getattr(torch, "_int_mm", None)
    return 0.0 if multiply is None else _rate(device, torch.int8, multiply)


def _fastest_s(work: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds of one call, in the fastest of several runs of many; of a slow call, in one of two."""
    prepared_s = _timed(work, 1, device)  # the first call prepares
    once_s = _timed(work, 1, device)
    if once_s > RUN_S:
        return min(prepared_s, once_s)
    count = max(1, int(RUN_S / max(once_s, 1e-9)))
    return min(_timed(work, count, device) / count for _ in range(NUM_RUNS))


@torch.inference_mode()
def _timed(work: Callable[[], Tensor], count: int, device: torch.device) -> float:
    begin_s = time.perf_counter()
    for _ in range(count):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin_s
