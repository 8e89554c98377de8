"""Matrix products of a small model on a CPU: the native library beside torch's own operators, in one run.

    python benchmarks/cpu/products.py [--threads 2] [--rows 1 8 32 512] [--w8a8] [--cpu-time] [--out record.json]

Every layer's four products of SmolLM2-135M (hidden 576, 960 joined q, k, v, feed-forward 1536, 30 layers), 4-bit groups of 32;
milliseconds for all layers, median of interleaved runs. `native integer` is the batch-invariant path, `native` whichever the
library prefers. With --w8a8 instead: 8-bit groups beside 8-bit rows with 8-bit activations, on AMX and on AVX-512 with VNNI.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, pack

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
NUM_LAYERS = 30


def weights() -> list[Grouped]:
    return [
        Grouped(
            torch.randint(0, 256, (rows, columns // GROUP, GROUP // 2), dtype=torch.uint8),
            torch.full((rows, columns // GROUP), 0.01, dtype=torch.float16),
            torch.full((rows, columns // GROUP), -0.075, dtype=torch.float16),
        )
        for _ in range(NUM_LAYERS)
        for rows, columns in SHAPES
    ]


def bytes_of(*, rounds: bool) -> list[Grouped]:
    return [
        Grouped(
            torch.randint(-127, 128, (rows, columns // GROUP, GROUP), dtype=torch.int8),
            torch.full((rows, columns // GROUP), 0.01, dtype=torch.float16),
            None,
            rounds=rounds,
        )
        for _ in range(NUM_LAYERS)
        for rows, columns in SHAPES
    ]


def native_run(matrices: list[Grouped], rows: int, threads: int, number: int, kernels: str = "") -> Callable[[], None]:
    library = native.open_library(threads, kernels)
    if library is None:
        raise SystemExit("the native library is not built: python setup.py build_ext --inplace")
    packed = [pack(matrix) for matrix in matrices]
    described = [native.matrix_of(each) for each in packed]
    inputs = {columns: torch.randn(rows, columns) for _, columns in SHAPES}
    outputs = {size: torch.empty(rows, size) for size, _ in SHAPES}
    products = [
        native.Product(inputs[m.num_columns].data_ptr(), outputs[m.num_rows].data_ptr(), None, rows, number, 0, 0.0)
        for m in described
    ]

    def run() -> None:
        for matrix, product in zip(described, products):
            library._handle.penstock_product(library._context, ctypes.byref(matrix), ctypes.byref(product))

    run.kept = packed, inputs, outputs  # type: ignore[attr-defined]
    return run


def bf16_run(matrices: list[Grouped], rows: int) -> Callable[[], None]:
    dense = [matrix.dequantize().bfloat16() for matrix in matrices]
    inputs = {columns: torch.randn(rows, columns).bfloat16() for _, columns in SHAPES}
    return lambda: [functional.linear(inputs[w.shape[1]], w) for w in dense] and None


def int4_run(matrices: list[Grouped], rows: int) -> Callable[[], None]:
    packed = []
    for matrix in matrices:
        values = matrix.widened().values.flatten(1).int()
        scales = torch.stack((matrix.scales, matrix.minimums), dim=-1).transpose(0, 1).contiguous().bfloat16()
        packed.append((torch._convert_weight_to_int4pack_for_cpu(values, 1), scales, matrix.num_columns))
    inputs = {columns: torch.randn(rows, columns).bfloat16() for _, columns in SHAPES}
    return lambda: [torch._weight_int4pack_mm_for_cpu(inputs[k], w, GROUP, s) for w, s, k in packed] and None


def int8_run(matrices: list[Grouped], rows: int) -> Callable[[], None]:
    packed = []
    for matrix in matrices:
        dense = matrix.dequantize()
        scales = dense.abs().amax(1) / 127
        packed.append(((dense / scales[:, None]).round().to(torch.int8), scales.bfloat16()))
    inputs = {columns: torch.randn(rows, columns).bfloat16() for _, columns in SHAPES}
    return lambda: [torch._weight_int8pack_mm(inputs[w.shape[1]], w, s) for w, s in packed] and None


def runs_of(matrices: list[Grouped], rows: int, threads: int) -> dict[str, Callable[[], None]]:
    runs = {
        "native": native_run(matrices, rows, threads, 0),
        "native integer": native_run(matrices, rows, threads, 8),
        "torch bf16": bf16_run(matrices, rows),
    }
    if rows > 64:
        return runs
    return runs | {"torch int4": int4_run(matrices, rows), "torch int8": int8_run(matrices, rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU products")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 512])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--w8a8", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    matrices = weights()
    eights = {"int8": bytes_of(rounds=False), "w8a8": bytes_of(rounds=True)} if args.w8a8 else {}
    record: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for rows in args.rows:
            if args.w8a8:
                runs = {
                    f"{kernels} {name}": native_run(each, rows, args.threads, 0, kernels)
                    for kernels in ("amx", "avx512")
                    for name, each in eights.items()
                }
            else:
                runs = runs_of(matrices, rows, args.threads)
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(args.repeats):
                for name, run in runs.items():
                    time.sleep(0.02)  # torch's threads spin for a while after their work
                    run()
                    begin = clock()
                    run()
                    times[name].append(clock() - begin)
            record[str(rows)] = {name: round(statistics.median(each) * 1e3, 2) for name, each in times.items()}
            print(f"{rows:4} rows  " + "  ".join(f"{name} {value:.2f}" for name, value in record[str(rows)].items()))
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
