"""Adapters for measurements, and what comes of asking for those that lie in files alone beside running generations.

How much later the first token of an adapter that has to be read comes than that of one on the device, and by how much steps of
others are late meanwhile: `benchmarks/cpu/adapters.py` and `benchmarks/gpu/adapters.py` tell.
"""

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from penstock import SamplingParams
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.engine.adapters.gate import AdapterGate
from penstock.runtime.engine.engine import Engine
from penstock.runtime.formats.tensor_file import write_safetensors
from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec

OWN_STEPS = 2
"""The last steps before a first token: that of its prompt, and the one launched before its token was there."""
NUMBERS = count(1)


def write(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Path:
    """An adapter of random numbers on all linears."""
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    if not isinstance(mlp, GatedMLP) or not isinstance(attention, GQA):
        raise SystemExit("choose a dense model")
    hidden = spec.hidden_size
    shapes = {
        "self_attn.q_proj": (attention.q_size, hidden),
        "self_attn.k_proj": (attention.kv_size, hidden),
        "self_attn.v_proj": (attention.kv_size, hidden),
        "self_attn.o_proj": (hidden, attention.q_size),
        "mlp.gate_proj": (mlp.width, hidden),
        "mlp.up_proj": (mlp.width, hidden),
        "mlp.down_proj": (hidden, mlp.width),
    }
    drawn = np.random.default_rng(seed).standard_normal(max(rows + columns for rows, columns in shapes.values()) * rank)
    numbers = drawn.astype(np.float16)
    tensors = {}
    for layer in range(spec.num_layers):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            a, b = numbers[: rank * columns], numbers[rank * columns : rank * (columns + rows)]
            tensors[f"{name}.lora_A.weight"] = np.roll(a, layer).reshape(rank, columns) * np.float16(columns**-0.5)
            tensors[f"{name}.lora_B.weight"] = np.roll(b, layer).reshape(rows, rank) * np.float16(0.02)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def written(folder: Path, spec: ModelSpec, rank: int, count: int) -> list[str]:
    """One adapter, and others with the same file of numbers and scales of their own: each is read and laid down as if alone."""
    first = write(folder / "a0", spec, rank, 0)
    settings = json.loads((first / "adapter_config.json").read_text())
    for number in range(1, count):
        made = folder / f"a{number}"
        made.mkdir()
        os.link(first / "adapter_model.safetensors", made / "adapter_model.safetensors")
        (made / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": rank + number / count}))
    return [str(folder / f"a{number}") for number in range(count)]


def request(number: int, prompt_tokens: int, tokens: int, adapter: str = "") -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    prompt = tuple((7 * number + i) % 1000 for i in range(prompt_tokens))
    return Request(request_id=next(NUMBERS), prompt=prompt, params=params, adapter=adapter)


def finish(engine: Engine) -> None:
    while engine.has_work:
        deltas = engine.step()
        if not deltas and not engine.scheduler.has_work:
            engine.wait(0.01)  # as a server does: a loop that spins keeps those that read from running
        for delta in deltas:
            if delta.finish is not None and delta.finish.reason == "error":
                raise SystemExit(delta.finish.message)


class Beside:
    """First tokens of some adapters, asked for one after another beside generations of the base; and the pace of steps."""

    def __init__(self, engine: Engine, num_beside: int, prompt_tokens: int) -> None:
        self.engine = engine
        self.num_beside = num_beside
        self.prompt_tokens = prompt_tokens
        self.quiet_s: list[float] = []
        self.loading_s: list[float] = []
        """Until the request that is asked for has its turn: its own prompt makes the steps after that longer."""
        self.running: set[int] = set()

    def first_token_s(self, adapter: str) -> float:
        asked = request(next(NUMBERS), self.prompt_tokens, 1, adapter)
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
        asked = request(next(NUMBERS), self.prompt_tokens, 400 + 3 * len(self.running))
        self.running.add(asked.request_id)
        self.engine.submit(asked)


def cold(engine: Engine, paths: Sequence[str], warm: str, count: int, beside: Beside) -> None:
    """The n-th adapter is asked for 1 / n as often as the first."""
    gate = engine.adapters
    assert gate is not None
    gc.collect()
    gc.freeze()  # as an engine's process does
    watched = Watched(gate)
    for _ in range(beside.num_beside):
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
