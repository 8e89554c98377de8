"""Adapters on a GPU: 64 sequences over 1, 8 and 32 adapters of rank 16 on all linears, against the base alone, by turns.

    python -m benchmarks.gpu.adapters [--model dummy:llama-3.1-8b] [--rank 16] [--turns 4] [--folder /dev/shm]

Weights are made up, adapters too. Figures are shares of the base's tokens a second: `plain` of an engine without adapters,
`base` of base-only traffic on the engine that serves them. Then adapters that lie in files alone, and with them some that do
not, are asked for beside running generations, some far more often than others: how much later the first token of one that is
read comes than that of one on the device, and by how much other steps are late. Kernels that are compiled once the engine is
warmed up are named: each is a step that somebody waited for.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cold_adapters import Beside, cold, finish, request, written
from benchmarks.gpu.tune_lora import choose
from penstock.assembly.engine import load, make_engine, size
from penstock.config import configure
from penstock.runtime.engine.engine import Engine

STREAMS, PROMPT, TOKENS = 64, 128, 128
COUNTS = (1, 8, 32)
BESIDE = 32
"""Generations that go on while cold adapters come."""


def timed(engine: Engine, paths: Sequence[str]) -> float:
    begin_s = time.perf_counter()
    for number, path in enumerate(paths):
        engine.submit(request(number, PROMPT, TOKENS, path))
    finish(engine)
    return time.perf_counter() - begin_s


def rate(seconds: Sequence[float]) -> float:
    return STREAMS * TOKENS / statistics.median(seconds)


def watch_compiling() -> list[str]:
    """Names of kernels that are compiled in this process from now on."""
    from triton import knobs

    found: list[str] = []

    def note(*, fn: Any, **rest: object) -> None:
        found.append(fn.name)

    knobs.runtime.jit_post_compile_hook = note
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--cold", type=int, default=100, help="adapters that lie in files alone")
    parser.add_argument("--asked", type=int, default=160, help="requests for these")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--cut", nargs="+", default=["as it is"], help="of benchmarks.gpu.tune_lora, one after another")
    asked = parser.parse_args()
    options = {
        "model": asked.model,
        "max_context": 1024,
        "prefix_caching": False,
        "speculate": "off",
        "num_blocks": 6400,
    }
    config = configure(max_sequences=STREAMS + BESIDE, **options)
    begin_s = time.perf_counter()
    loaded = load(config)
    engine = make_engine(config, loaded, size(config, loaded))
    plain = [timed(engine, [""] * STREAMS) for _ in range(asked.turns + 1)][1:]
    print(f"plain {rate(plain):,.0f} tok/s ({time.perf_counter() - begin_s:.0f} s)", flush=True)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        total = max(COUNTS) + asked.cold
        paths = written(Path(scratch), loaded.spec, asked.rank, total)
        print(f"{total} adapters written ({time.perf_counter() - begin_s:.0f} s)", flush=True)
        named = tuple(f"{Path(path).name}={path}" for path in paths)
        config = configure(config, adapters=named, max_adapters=max(COUNTS), max_adapter_rank=asked.rank)
        for number, cut in enumerate(asked.cut):
            choose(cut)
            begin_s = time.perf_counter()
            engine = make_engine(config, loaded, size(config, loaded), warms_up=True)
            print(f"{cut}: engine with adapters, warmed up: {time.perf_counter() - begin_s:.0f} s", flush=True)
            by_turns(engine, paths, asked.turns, rate(plain))
            if asked.cold and number + 1 == len(asked.cut):
                cold(engine, paths[max(COUNTS) :], paths[0], asked.asked, Beside(engine, BESIDE, PROMPT))
            engine.close()
            del engine
            gc.collect()
            torch.cuda.empty_cache()


def by_turns(engine: Engine, paths: Sequence[str], turns: int, plain: float) -> None:
    late = watch_compiling()
    cases = {n: [paths[i % n] for i in range(STREAMS)] for n in COUNTS}
    base: list[float] = []
    shares: dict[int, list[float]] = {n: [] for n in cases}
    for turn in range(turns + 1):
        alone = timed(engine, [""] * STREAMS)
        found = {n: timed(engine, chosen) for n, chosen in cases.items()}
        print(f"turn {turn}: {alone:.2f} s, {', '.join(f'{one:.2f}' for one in found.values())}", flush=True)
        if late:
            print(f"compiled meanwhile: {', '.join(late)}", flush=True)
            late.clear()
        if turn:
            base.append(alone)
            for n, seconds in found.items():
                shares[n].append(alone / seconds)
    print(f"base on an engine with adapters: {rate(base):,.0f} tok/s, {rate(base) / plain:.3f} of plain", flush=True)
    told = ", ".join(f"{n} adapters {statistics.median(found_shares):.3f}" for n, found_shares in shares.items())
    print(f"of base: {told}", flush=True)


if __name__ == "__main__":
    main()
