"""The host tier of a GPU's KV cache: rates of copies, conversations that do not fit, that fit, and one prefix for many.

    python -m benchmarks.gpu.tiers [--model dummy:llama-3.1-8b] [--cases copies,turns,...] [--json FILE]

The same weights serve with and without tiers, by turns of one order. `turns` has all users ask again at once, so that all but
a few always queue; in `think` they come back after some seconds, as agents do. `noise` has one load answered twice without
tiers, in other company: what differs there is what bfloat16 sums of other batches differ by. `exact` is a small model in
float32.
"""

import argparse
import cProfile
import gc
import json
import mmap
import pstats
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sessions import Turns, converse
from penstock.assembly.engine import LoadedModel, load, make_engine, size
from penstock.config import EngineConfig, configure
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.runner import RehearsingRunner
from penstock.runtime.engine.engine import Engine

PIECE = 64
POOL = "4GiB"
EXACT_MODEL = "dummy:qwen3-0.6b"
WITHOUT, TIERS = "without", "tiers"
REHEARSAL_S = 3.0


@dataclass
class StepTimes:
    """Where the time of an engine's steps went."""

    num_steps: int = 0
    num_tokens: int = 0
    device_s: float = 0.0
    host_s: float = 0.0
    rest_s: float = 0.0

    def add(self, step: StepTime) -> None:
        self.num_steps += 1
        self.num_tokens += step.features.num_tokens
        self.device_s += step.device_s
        self.host_s += step.host_s
        self.rest_s += step.rest_s

    def told(self) -> dict[str, float]:
        """Since the last call."""
        told = {f"step_{name}": round(value, 3) for name, value in vars(self).items()}
        self.__init__()  # type: ignore[misc]
        return told


STEPS = {WITHOUT: StepTimes(), TIERS: StepTimes()}


@contextmanager
def pair(
    config: EngineConfig, loaded: LoadedModel, host: str, pool: str, *, warms_up: bool = True
) -> Iterator[dict[str, Engine]]:
    """An engine without tiers and one with them, over the same weights."""
    engines: dict[str, Engine] = {}
    try:
        for name, kept in ((WITHOUT, None), (TIERS, host)):
            begun = time.perf_counter()
            own = replace(config, cache=replace(config.cache, kv_host=kept, kv_memory=pool))
            engines[name] = make_engine(own, loaded, size(own, loaded), STEPS[name].add, warms_up=warms_up)
            converse(engines[name], users=4, turns=1, first=512, more=16, answer=8, seed=99)
            made_s = time.perf_counter()
            num_recorded = rehearsed(engines[name], REHEARSAL_S) if warms_up else 0
            took = f"{made_s - begun:.1f} s, {num_recorded} more steps recorded in {time.perf_counter() - made_s:.1f} s"
            print(f"engine {name}, pool {pool}: {took}", flush=True)
        yield engines
    finally:
        for engine in engines.values():
            engine.close()
        engines.clear()
        gc.collect()
        torch.cuda.empty_cache()


def rehearsed(engine: Engine, seconds: float) -> int:
    """Steps of likely sizes are recorded, as they are in a server that nobody asks for so long; returns how many."""
    runner, end_s, count = engine.runner, time.perf_counter() + seconds, 0
    while isinstance(runner, RehearsingRunner) and time.perf_counter() < end_s and runner.rehearse():
        count += 1
    return count


@contextmanager
def profiled(is_on: bool) -> Iterator[None]:
    """Where the engine's thread spends its time, waits included."""
    profile = cProfile.Profile()
    if is_on:
        profile.enable()
    yield
    if is_on:
        profile.disable()
        for order in ("tottime", "cumtime"):
            pstats.Stats(profile).sort_stats(order).print_stats(28)


def rate(num_bytes: int, move: Callable[[], object], tries: int = 12) -> float:
    """GB/s, the median."""
    times = []
    for _ in range(tries):
        begun = time.perf_counter()
        move()
        times.append(time.perf_counter() - begun)
    return round(num_bytes / sorted(times)[tries // 2] / 1e9, 1)


def raw_rates() -> dict[str, Any]:
    """What the machine gives to plain copies between pinned memory and the device, in pieces of several sizes."""
    whole = 256 << 20
    host, device = torch.empty(whole, dtype=torch.uint8, pin_memory=True), torch.empty(whole, dtype=torch.uint8).cuda()
    back, streams = torch.empty(whole, dtype=torch.uint8, pin_memory=True), [torch.cuda.Stream() for _ in range(2)]

    def moved(to: torch.Tensor, source: torch.Tensor, piece: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            for begin in range(0, whole, piece):
                to[begin : begin + piece].copy_(source[begin : begin + piece], non_blocking=True)
        stream.synchronize()

    def both() -> None:
        thread = threading.Thread(target=moved, args=(back, device, whole, streams[1]))
        thread.start()
        moved(device, host, whole, streams[0])
        thread.join()

    found: dict[str, Any] = {}
    for piece in (whole, 2 << 20, 128 << 10):
        for name, to, source in (("in", device, host), ("out", back, device)):
            found[f"raw_{name}_{piece >> 10}k"] = rate(whole, partial(moved, to, source, piece, streams[0]), 6)
    found["raw_both"] = rate(2 * whole, both, 6)
    return found | pinning()


def pinning() -> dict[str, Any]:
    """Seconds that a gibibyte of pinned memory takes: asked of the driver, or touched by many threads and registered then."""
    num_bytes = 1 << 30
    begun = time.perf_counter()
    torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    given_s = time.perf_counter() - begun
    begun = time.perf_counter()
    room = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        room.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(room, dtype=np.uint8)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda part: part.fill(0), np.split(array, 64)))
    touched_s = time.perf_counter() - begun
    code = torch.cuda.cudart().cudaHostRegister(array.ctypes.data, num_bytes, 0)
    registered_s = time.perf_counter() - begun
    host, device = torch.from_numpy(array), torch.empty(num_bytes, dtype=torch.uint8, device="cuda")

    def move() -> None:
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    found = {"pin_given_s": given_s, "pin_touched_s": touched_s, "pin_registered_s": registered_s}
    found |= {"pin_code": int(code), "raw_in_registered": rate(num_bytes, move, 4)}
    torch.cuda.cudart().cudaHostUnregister(array.ctypes.data)
    return {name: round(value, 3) for name, value in found.items()}


def over(begin: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    begin(*arguments, **named).wait()


def copy_rates(engine: Engine) -> dict[str, Any]:
    runner: Any = engine.runner
    found: dict[str, Any] = raw_rates()
    for count in (32, PIECE, 256):
        blocks, num_bytes = list(range(count)), count * runner.block_bytes
        contents = runner.begin_read(blocks, is_fenced=False).wait()
        found[f"out_{count}"] = rate(num_bytes, partial(over, runner.begin_read, blocks, is_fenced=False))
        found[f"in_{count}"] = rate(num_bytes, partial(over, runner.begin_write, blocks, contents))
        written = runner.read_blocks(blocks[:4])
        found["is_exact"] = all(mine == bytes(other) for mine, other in zip(written, contents))
        begun = time.perf_counter()
        copy = runner.begin_read(blocks, is_fenced=False)
        found[f"begin_{count}_ms"] = round(1000 * (time.perf_counter() - begun), 3)
        copy.wait()
    return found | {"block_bytes": runner.block_bytes}


def counted(engine: Engine, before: dict[str, int] | None = None) -> dict[str, Any]:
    """What tiers did, since `before` if that is given."""
    counts: dict[str, Any] = {} if engine.tiers is None else dict(engine.tiers.counts._asdict())
    is_level = ("host_bytes", "disk_bytes")
    return {name: count if name in is_level else count - (before or {}).get(name, 0) for name, count in counts.items()}


def converse_counted(engine: Engine, **shape: Any) -> tuple[Turns, dict[str, Any]]:
    before = counted(engine)
    turns = converse(engine, **shape)
    rates = {} if engine.tiers is None else {"rates": {k: v for k, v in vars(engine.tiers.rates).items() if v}}
    return turns, turns.figures | counted(engine, before) | rates


def equal(mine: Turns, theirs: Turns) -> str:
    """Of all answers; and of first turns alone, whose prompts do not depend on answers before."""
    both = [(turn, theirs.answers[user, turn] == answer) for (user, turn), answer in mine.answers.items()]
    first = [is_same for turn, is_same in both if not turn]
    return f"{sum(is_same for _, is_same in both)} of {len(both)}, first turns {sum(first)} of {len(first)}"


def compare(
    engines: dict[str, Engine], first_id: int = 1000, *, is_profiled: bool = False, **shape: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {"load": shape}
    turns: dict[str, Turns] = {}
    for name, engine in engines.items():
        begun = time.perf_counter()

        def say(count: int, name: str = name, engine: Engine = engine, begun: float = begun) -> None:
            if count % (2 * shape["users"]) == 0:
                print(f"  {name}: {count} turns, {time.perf_counter() - begun:.1f} s, {counted(engine)}", flush=True)

        STEPS[name].told()
        with profiled(is_profiled and name == TIERS):
            turns[name], found[name] = converse_counted(engine, first_id=first_id, on_turn=say, **shape)
        found[name] |= STEPS[name].told()
        print(json.dumps({name: found[name]}), flush=True)
    found["equal_answers"] = equal(turns[TIERS], turns[WITHOUT])
    found["throughput_ratio"] = round(found[WITHOUT]["wall_s"] / found[TIERS]["wall_s"], 3)
    found["ttft_p50_ratio"] = round(found[WITHOUT]["ttft_p50_ms"] / found[TIERS]["ttft_p50_ms"], 2)
    return found


def convoy(engines: dict[str, Engine]) -> dict[str, Any]:
    """50 users ask at once for one prefix that host memory has and the device has not."""
    found: dict[str, Any] = {}
    shape = {"first": 32, "more": 0, "answer": 16, "shared": 10_000, "turns": 1, "seed": 7}
    for name, engine in engines.items():
        converse(engine, users=2, at_once=1, first_id=100_000, **shape)
        converse(engine, users=2, at_once=1, first_id=100_100, **shape)
        converse(
            engine, users=12, turns=1, first=6000, more=0, answer=4, seed=8, first_id=100_200
        )  # the device forgets
        _, found[name] = converse_counted(engine, users=50, first_id=100_300, **shape)
        print(json.dumps({name: found[name]}), flush=True)
    for quantile in ("p50", "p95"):
        figure = f"ttft_{quantile}_ms"
        found[f"ttft_{quantile}_ratio"] = round(found[WITHOUT][figure] / found[TIERS][figure], 2)
    return found


def fits(engines: dict[str, Engine], rounds: int) -> dict[str, Any]:
    """A load that fits the device, by turns."""
    shape = {"users": 32, "turns": 3, "first": 1024, "more": 128, "answer": 64}
    walls: dict[str, list[float]] = {WITHOUT: [], TIERS: []}
    for turn in range(rounds):
        both = list(engines.items())
        for name, engine in both if turn % 2 else reversed(both):
            wall_s = converse(engine, seed=turn, first_id=1000 * (turn + 1), **shape).wall_s
            walls[name].append(round(wall_s, 3))
    print(json.dumps({"walls_s": walls}), flush=True)
    least = {name: min(times[1:]) for name, times in walls.items()}
    return {"load": shape, "ratio": round(least[WITHOUT] / least[TIERS], 3), **counted(engines[TIERS])}


def noise(engines: dict[str, Engine]) -> dict[str, Any]:
    """One load without tiers: twice alike, and once more with fewer at a time."""
    shape = {"users": 24, "turns": 1, "first": 1024, "more": 0, "answer": 48, "seed": 5}
    engine = engines[WITHOUT]
    first, again, fewer = (
        converse(engine, first_id=200_000 + 1000 * place, at_once=most, **shape)
        for place, most in enumerate((24, 24, 5))
    )
    return {"alike": equal(again, first), "in other company": equal(fewer, first)}


def exact() -> dict[str, Any]:
    """Every tier forced over a pool that is far too small, in float32: sums of other batches decide no token."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = configure(model=EXACT_MODEL, max_context=4096, max_sequences=32, dtype="float32")
    loaded = load(config, warms_up=False)
    print(f"loaded {EXACT_MODEL} in float32", flush=True)
    with pair(config, loaded, "6GiB", "1GiB", warms_up=False) as engines:
        return compare(engines, users=40, turns=5, first=384, more=48, answer=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--first", type=int, default=1536, help="tokens of a first turn")
    parser.add_argument("--think", type=float, default=3.0, help="seconds until a user comes back, where they think")
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--host", default="20GiB")
    parser.add_argument("--cases", default="copies,turns,think,convoy,fits,noise,exact")
    parser.add_argument("--rounds", type=int, default=5, help="of what fits")
    parser.add_argument("--profile", action="store_true", help="tell where the time of `turns` with tiers goes")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cases = asked.cases.split(",")
    found: dict[str, Any] = {"model": asked.model}

    def tell(name: str, figures: dict[str, Any]) -> None:
        found[name] = figures
        print(json.dumps({name: figures}), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")

    if "exact" in cases:
        tell("exact", exact())
    if {"copies", "turns", "think", "convoy", "noise", "fits"}.isdisjoint(cases):
        return
    config = configure(model=asked.model, max_context=16_384, max_sequences=64)
    begun = time.perf_counter()
    loaded = load(config, warms_up=True)
    print(f"loaded in {time.perf_counter() - begun:.1f} s on {loaded.device.name}", flush=True)
    if not {"copies", "turns", "think", "convoy", "noise"}.isdisjoint(cases):
        with pair(config, loaded, asked.host, asked.pool) as engines:
            if "copies" in cases:
                tell("copies", copy_rates(engines[TIERS]))
            if "convoy" in cases:
                tell("convoy", convoy(engines))
            if "turns" in cases:
                shape = {"users": asked.users, "turns": asked.turns, "first": asked.first, "more": 96, "answer": 16}
                tell("turns", compare(engines, is_profiled=asked.profile, **shape))
            if "think" in cases:
                shape = {"users": asked.users, "turns": asked.turns, "first": asked.first, "more": 96, "answer": 16}
                tell("think", compare(engines, 5000, seed=3, think_s=asked.think, **shape))
            if "noise" in cases:
                tell("noise", noise(engines))
    if "fits" in cases:
        with pair(config, loaded, "4GiB", "20GiB") as engines:
            tell("fits", fits(engines, asked.rounds))


if __name__ == "__main__":
    main()
