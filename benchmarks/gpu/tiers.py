"""The host tier of a GPU's KV cache: rates of copies, conversations that do not fit, that fit, and one prefix for many.

    python -m benchmarks.gpu.tiers [--model dummy:llama-3.1-8b] [--users 32] [--turns 4] [--host 24GiB] [--json FILE]

The same weights serve with and without tiers, by turns of one order.
"""

import argparse
import gc
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.sessions import converse
from penstock.assembly.engine import LoadedModel, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.runtime.engine.engine import Engine

PIECE = 64
POOL = "5GiB"


def engine_of(config: EngineConfig, loaded: LoadedModel, *, host: str | None, pool: str) -> Engine:
    cache = replace(config.cache, kv_host=host, kv_memory=pool)
    config = replace(config, cache=cache)
    begun = time.perf_counter()
    engine = make_engine(config, loaded, size(config, loaded), warms_up=True)
    print(f"engine with host {host}, pool {pool}: {time.perf_counter() - begun:.1f} s", flush=True)
    return engine


def release() -> None:
    """What an engine held that nobody refers to any more."""
    gc.collect()
    torch.cuda.empty_cache()


def copy_rates(engine: Engine) -> dict[str, Any]:
    runner: Any = engine.runner
    blocks, num_bytes = list(range(PIECE)), PIECE * runner.block_bytes
    contents = runner.begin_read(blocks, is_fenced=False).wait()
    rates = {}
    for name, begin in (
        ("out", lambda: runner.begin_read(blocks, is_fenced=False)),
        ("in", lambda: runner.begin_write(blocks, contents)),
    ):
        times = []
        for _ in range(12):
            begun = time.perf_counter()
            begin().wait()
            times.append(time.perf_counter() - begun)
        rates[f"{name}_gb_per_s"] = round(num_bytes / sorted(times)[len(times) // 2] / 1e9, 1)
    written = runner.read_blocks(blocks[:4])
    rates["is_exact"] = all(mine == bytes(other) for mine, other in zip(written, contents))
    rates["piece_bytes"] = num_bytes
    return rates


def told(engine: Engine) -> dict[str, Any]:
    return {} if engine.tiers is None else dict(engine.tiers.counts._asdict())


def compare(config: EngineConfig, loaded: LoadedModel, host: str, pool: str, **load_of: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"load": load_of, "pool": pool}
    answers = {}
    for name, asked in (("without", None), ("tiers", host)):
        engine = engine_of(config, loaded, host=asked, pool=pool)
        converse(engine, users=4, turns=1, first=512, more=16, answer=8, seed=99)
        turns = converse(engine, first_id=1000, **load_of)
        found[name] = turns.figures | told(engine)
        answers[name] = turns.answers
        if asked is not None and "copies" not in found:
            found["copies"] = copy_rates(engine)
        engine.close()
        del engine
        release()
        print(json.dumps({name: found[name]}), flush=True)
    both = [answers["tiers"][key] == answers["without"][key] for key in answers["without"]]
    found["equal_answers"] = f"{sum(both)} of {len(both)}"
    found["throughput_ratio"] = round(found["without"]["wall_s"] / found["tiers"]["wall_s"], 3)
    found["ttft_p50_ratio"] = round(found["without"]["ttft_p50_ms"] / found["tiers"]["ttft_p50_ms"], 2)
    return found


def convoy(config: EngineConfig, loaded: LoadedModel, host: str) -> dict[str, Any]:
    """50 users ask at once for one prefix that host memory has and the device has not."""
    found: dict[str, Any] = {}
    shape = {"first": 32, "more": 0, "answer": 16, "shared": 10_000, "turns": 1, "seed": 7}
    for name, asked in (("computed", None), ("host", host)):
        engine = engine_of(config, loaded, host=asked, pool=POOL)
        converse(engine, users=2, at_once=1, **shape)
        converse(engine, users=2, at_once=1, first_id=100, **shape)
        converse(engine, users=12, turns=1, first=6000, more=0, answer=4, seed=8, first_id=200)  # the device forgets
        found[name] = converse(engine, users=50, first_id=300, **shape).figures | told(engine)
        engine.close()
        del engine
        release()
        print(json.dumps({name: found[name]}), flush=True)
    found["ttft_p95_ratio"] = round(found["computed"]["ttft_p95_ms"] / found["host"]["ttft_p95_ms"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--host", default="24GiB")
    parser.add_argument("--cases", default="turns,convoy,fits")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    config = configure(model=asked.model, max_context=16_384, max_sequences=64)
    begun = time.perf_counter()
    loaded = load(config, warms_up=True)
    print(f"loaded in {time.perf_counter() - begun:.1f} s on {loaded.device.name}", flush=True)
    found: dict[str, Any] = {"device": loaded.device.name, "model": asked.model}
    users = {"users": asked.users, "turns": asked.turns, "first": 4096, "more": 256, "answer": 48}
    cases = {
        "turns": lambda: compare(config, loaded, asked.host, POOL, **users),
        "convoy": lambda: convoy(config, loaded, "8GiB"),
        "fits": lambda: compare(config, loaded, "8GiB", "50GiB", users=32, turns=3, first=1024, more=128, answer=64),
    }
    for name in asked.cases.split(","):
        found[name] = cases[name]()
        print(json.dumps({name: found[name]}), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
