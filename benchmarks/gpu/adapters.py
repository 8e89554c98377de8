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
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cpu.adapters import write
from benchmarks.gpu.tune_lora import choose
from penstock import SamplingParams
from penstock.assembly.engine import load, make_engine, size
from penstock.config import configure
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.engine.adapters.gate import AdapterGate
from penstock.runtime.engine.engine import Engine
from penstock.runtime.models.spec import ModelSpec

STREAMS, PROMPT, TOKENS = 64, 128, 128
COUNTS = (1, 8, 32)
BESIDE = 32
"""Generations that go on while cold adapters come."""
OWN_STEPS = 2
"""The last steps before a first token: that of its prompt, and the one launched before its token was there."""
NUMBERS = count(1)


def request(number: int, tokens: int, adapter: str = "") -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    prompt = tuple((7 * number + i) % 1000 for i in range(PROMPT))
    return Request(request_id=next(NUMBERS), prompt=prompt, params=params, adapter=adapter)


def timed(engine: Engine, paths: Sequence[str]) -> float:
    begin_s = time.perf_counter()
    for number, path in enumerate(paths):
        engine.submit(request(number, TOKENS, path))
    finish(engine)
    return time.perf_counter() - begin_s


def finish(engine: Engine) -> None:
    while engine.has_work:
        deltas = engine.step()
        if not deltas and not engine.scheduler.has_work:
            engine.wait(0.01)  # as a server does: a loop that spins keeps those that read from running
        for delta in deltas:
            if delta.finish is not None and delta.finish.reason == "error":
                raise SystemExit(delta.finish.message)


def written(folder: Path, spec: ModelSpec, rank: int, count: int) -> list[str]:
    """One adapter, and copies of it that differ in their last number: what numbers are takes no time."""
    first = write(folder / "a0", spec, rank, 0)
    for number in range(1, count):
        made = shutil.copytree(first, folder / f"a{number}")
        with (made / "adapter_model.safetensors").open("r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(number.to_bytes(2, "little"))
    return [str(folder / f"a{number}") for number in range(count)]


def rate(seconds: Sequence[float]) -> float:
    return STREAMS * TOKENS / statistics.median(seconds)


class Beside:
    """First tokens of some adapters, asked for one after another beside generations of the base; and the pace of steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.quiet_s: list[float] = []
        self.loading_s: list[float] = []
        """Until the request that is asked for has its turn: its own prompt makes the steps after that longer."""
        self.running: set[int] = set()

    def first_token_s(self, adapter: str) -> float:
        asked = request(next(NUMBERS), 1, adapter)
        begin_s = last_s = time.perf_counter()
        self.engine.submit(asked)
        steps_s: list[float] = []
        while True:
            deltas = self.step()
            now_s = time.perf_counter()
            steps_s.append(now_s - last_s)
            last_s = now_s
            if any(delta.request_id == asked.request_id and delta.token_ids for delta in deltas):
                self.loading_s += steps_s[:-OWN_STEPS]
                return now_s - begin_s

    def rest(self, steps: int) -> None:
        for _ in range(steps):
            begin_s = time.perf_counter()
            self.step()
            self.quiet_s.append(time.perf_counter() - begin_s)

    def step(self) -> Sequence[Delta]:
        """Where a generation of the base has ended, another begins."""
        deltas = self.engine.step()
        for delta in deltas:
            if delta.finish is not None and delta.request_id in self.running:
                self.running.remove(delta.request_id)
                self.begin()
        return deltas

    def begin(self) -> None:
        asked = request(next(NUMBERS), 400 + 3 * len(self.running))
        self.running.add(asked.request_id)
        self.engine.submit(asked)


def cold(engine: Engine, paths: Sequence[str], warm: str, count: int) -> None:
    """The n-th adapter is asked for 1 / n as often as the first."""
    gate = engine.adapters
    assert gate is not None
    gc.collect()
    gc.freeze()  # as an engine's process does
    watched = Watched(gate)
    beside = Beside(engine)
    for _ in range(BESIDE):
        beside.begin()
    beside.rest(20)
    beside.first_token_s(warm)
    beside.quiet_s.clear()  # prompts were among these steps
    beside.loading_s.clear()
    colds, warms, loading_s = [], [], []
    chances = 1 / np.arange(1, len(paths) + 1)
    drawn = np.random.default_rng(0).choice(len(paths), count, p=chances / chances.sum())
    for path in (paths[number] for number in drawn):
        beside.rest(2)
        num_read = gate.counts.num_read
        took_ms = beside.first_token_s(path) * 1e3
        if gate.counts.num_read > num_read:
            colds.append(took_ms)
            loading_s += beside.loading_s
        else:
            warms.append(took_ms)
        beside.loading_s = []
    for number in beside.running:
        engine.cancel(number)
    finish(engine)
    usual = statistics.median(beside.quiet_s) * 1e3
    extra = sorted(each - statistics.median(warms) for each in colds)
    late = sorted(each * 1e3 - usual for each in loading_s)
    print(
        f"{count} requests over {len(paths)} adapters, {len(colds)} read, {gate.counts.num_evicted} taken from the device\n"
        f"a cold adapter's first token comes {statistics.median(extra):.1f} ms later, p95 {extra[-1 - len(extra) // 20]:.1f} "
        f"(on the device: {statistics.median(warms):.1f} ms)\n"
        f"steps beside it: {usual:.2f} ms usually, p95 {late[-1 - len(late) // 20]:.2f} later, at most {late[-1]:.2f} later "
        f"({len(late)} steps; alone at most {max(beside.quiet_s) * 1e3 - usual:.2f} later)",
        flush=True,
    )
    print(
        f"latest: {', '.join(f'{each:.1f}' for each in late[-8:])}; alone: {worst(beside.quiet_s, usual)}", flush=True
    )
    watched.tell()


def worst(found_s: Sequence[float], usual_ms: float) -> str:
    return ", ".join(f"{each * 1e3 - usual_ms:.1f}" for each in sorted(found_s)[-8:])


class Watched:
    """How long reading and laying down adapters take, and collections of garbage."""

    def __init__(self, gate: AdapterGate) -> None:
        self._took_s: dict[str, list[float]] = {"garbage": []}
        self._begun_s = 0.0
        gc.callbacks.append(self._collects)
        host: Any = gate._host
        for name in ("read", "place"):
            setattr(host, name, self._timed(name, getattr(host, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        took_s = self._took_s[name] = []

        def timed(*told: Any) -> Any:
            begin_s = time.perf_counter()
            try:
                return call(*told)
            finally:
                took_s.append(time.perf_counter() - begin_s)

        return timed

    def _collects(self, phase: str, told: object) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._begun_s = now_s
        else:
            self._took_s["garbage"].append(now_s - self._begun_s)

    def tell(self) -> None:
        gc.callbacks.remove(self._collects)
        for name, took_s in self._took_s.items():
            if took_s:
                ordered = sorted(each * 1e3 for each in took_s)
                p95 = ordered[-1 - len(ordered) // 20]
                told = f"{statistics.median(ordered):.1f} ms, p95 {p95:.1f}, at most {ordered[-1]:.1f}"
                print(f"{name}: {told}, {len(ordered)} times", flush=True)


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
                cold(engine, paths[max(COUNTS) :], paths[0], asked.asked)
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
