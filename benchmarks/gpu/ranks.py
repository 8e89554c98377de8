"""What one device can prove of several ranks.

emulated ranks    the shards of a model, in threads that take turns on one device: their scores are the unsplit model's
memory            bytes of each rank beside what was predicted
world of one      the same engine through ranks and not through them, by turns: tokens a second
collectives       NCCL's sum inside a recorded graph gives what it gives outside

python benchmarks/gpu/ranks.py                      a few minutes on an H200, llama-3.1-8b
python benchmarks/gpu/ranks.py --device cpu --layers 2 --model smollm2-135m
"""

import argparse
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.execution.parallel.part import ModelPart, rank_runner
from penstock.runtime.execution.parallel.runner import LeadingRunner
from penstock.runtime.execution.parallel.world import GroupPeers, Rendezvous, World, open_store
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models import weights as recipes
from penstock.runtime.models.catalog import find
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import shard_recipes
from penstock.runtime.models.spec import ModelSpec

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)


class TurnPeers:
    """Ranks that are threads of one process: one device computes for them in turns."""

    def __init__(self, index: int, total: int, places: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.index, self.count = index, total
        self._places, self._barrier = places, barrier

    def all_reduce(self, x: Tensor) -> None:
        parts = self._exchanged(x)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        self._barrier.wait()
        x.copy_(total)

    def all_gather(self, x: Tensor) -> Tensor:
        parts = torch.stack(self._exchanged(x))
        self._barrier.wait()
        return parts

    def _exchanged(self, x: Tensor) -> list[Tensor]:
        self._places[self.index] = x.clone()
        self._barrier.wait()
        return [part for part in self._places if part is not None]


class TurnWorld:
    """As much of a world as joining a shard needs."""

    def __init__(self, ranks: Ranks, rank: int, peers: TurnPeers) -> None:
        self.place = ranks.place(rank)
        self.tensor = self.stage = peers


def taken(recipe: recipes.Recipe, whole: dict[str, Tensor]) -> Tensor:
    """A recipe over the parameters of a model that is loaded."""
    match recipe:
        case recipes.Tensor(name):
            return whole[name]
        case recipes.Concat(parts, axis):
            return torch.cat([taken(part, whole) for part in parts], dim=axis)
        case recipes.Take(part, start, stop, step, axis):
            index = [slice(None)] * axis + [slice(start, stop, step)]
            return taken(part, whole)[tuple(index)]
        case _:
            raise TypeError(f"no dummy model holds {recipe}")


def fill(part: ModelPart, whole: Decoder) -> None:
    held = dict(whole.named_parameters())
    cut = shard_recipes({name: recipes.Tensor(name) for name in held}, part.shard)
    for name in dict(part.model.named_parameters()):
        path, _, last = name.rpartition(".")
        values = taken(cut[name], held).contiguous()
        setattr(part.model.get_submodule(path), last, torch.nn.Parameter(values, requires_grad=False))


def generate(runner: Any, vocab_size: int, num_prompts: int, num_tokens: int) -> list[list[int]]:
    """Greedy answers to made-up prompts of 24 tokens."""
    generator, steps = torch.Generator().manual_seed(1), count()
    prompts = torch.randint(0, vocab_size, (num_prompts, 24), generator=generator).tolist()
    per_row = -(-(24 + num_tokens) // BLOCK)
    blocks = [tuple(range(row * per_row, (row + 1) * per_row)) for row in range(num_prompts)]
    chunks = [
        Chunk(row, 0, 24, tuple(prompt), blocks[row], True, Arrival(GREEDY, 0, 24, (), ""))
        for row, prompt in enumerate(prompts)
    ]
    answers: list[list[int]] = [[] for _ in prompts]
    for number in range(num_tokens):
        output = runner.launch(Batch(next(steps), tuple(chunks))).result()
        for answer, tokens in zip(answers, output.tokens, strict=True):
            answer += tokens
        chunks = [Chunk(row, 24 + number, 1, (), (), True, None) for row in range(num_prompts)]
    return answers


def emulated(spec: ModelSpec, device: torch.device, dtype: torch.dtype, tensor: int, tokens: int) -> dict[str, Any]:
    whole = dummy_model(spec, device, dtype)
    if not isinstance(whole, Decoder):
        raise TypeError("no decoder")
    shape = RunnerShape(64, BLOCK, 8, 256)
    expected = generate(ModelRunner(whole, shape), spec.vocab_size, 8, tokens)
    ranks, barrier = Ranks(tensor), threading.Barrier(tensor)
    places: list[Tensor | None] = [None] * tensor
    memory: list[dict[str, float]] = []

    def run(rank: int) -> list[list[int]]:
        part = ModelPart(spec, ranks, rank, device, dtype)
        fill(part, whole)
        held = sum(parameter.nbytes for parameter in part.model.parameters())
        memory.append({"rank": rank, "measured": held, "predicted": part.shard.num_parameters * dtype.itemsize})
        model = part.join(TurnWorld(ranks, rank, TurnPeers(rank, tensor, places, barrier)))  # type: ignore[arg-type]
        return generate(ModelRunner(model, shape), spec.vocab_size, 8, tokens)  # type: ignore[arg-type]

    with ThreadPoolExecutor(tensor) as pool:
        found = list(pool.map(run, range(tensor)))
    same = sum(a == b for one in found for mine, theirs in zip(one, expected) for a, b in zip(mine, theirs))
    return {
        "dtype": str(dtype),
        "tensor": tensor,
        "tokens": 8 * tokens * tensor,
        "equal": same,
        "ranks_agree": all(one == found[0] for one in found),
        "memory": sorted(memory, key=lambda row: row["rank"]),
    }


def world_of_one(spec: ModelSpec, device: torch.device, dtype: torch.dtype, tokens: int) -> dict[str, Any]:
    """Decode steps of 8 sequences, by turns."""
    shape = RunnerShape(512, BLOCK, 16, 512)
    store = open_store("127.0.0.1", 0, is_host=True)
    world = World(Ranks().place(0), Rendezvous("127.0.0.1", store.port), device, store)
    part = ModelPart(spec, Ranks(), 0, device, dtype)
    part.make_up()
    joined = part.join(world)
    through = LeadingRunner(rank_runner(joined, world, shape, None), world, spec.vocab_size)
    whole = dummy_model(spec, device, dtype)
    plain = rank_runner(whole, world, shape, None)
    rates: dict[str, list[float]] = {"plain": [], "ranks": []}
    for turn in range(6):
        for name, runner in (("plain", plain), ("ranks", through)):
            begin_s = time.perf_counter()
            generate(runner, spec.vocab_size, 8, tokens)
            if turn:
                rates[name].append(8 * tokens / (time.perf_counter() - begin_s))
    usual = {name: statistics.median(values) for name, values in rates.items()}
    world.close()
    return {"tokens_per_s": usual, "ratio": usual["ranks"] / usual["plain"]}


def recorded_sum(device: torch.device) -> dict[str, Any]:
    """NCCL's sum, alone in its world, inside a graph."""
    from torch.distributed import PrefixStore, ProcessGroupNCCL  # type: ignore[attr-defined]

    store = open_store("127.0.0.1", 0, is_host=True)
    peers = GroupPeers(ProcessGroupNCCL(PrefixStore("sum", store), 0, 1), 0, 1)
    x = torch.ones(4096, device=device)
    for _ in range(3):
        peers.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x * 2
        peers.all_reduce(y)
    graph.replay()
    torch.cuda.synchronize()
    return {"equal": bool((y == 2).all())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int)
    parser.add_argument(
        "--tokens", type=int, default=16, help="of each answer; a world of one gives four times as many"
    )
    asked = parser.parse_args()
    device = torch.device(asked.device)
    spec = find(asked.model)
    if asked.layers:
        spec = replace(spec, layers=spec.layers[: asked.layers])
    results: dict[str, Any] = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    tests = {
        "emulated_float32": lambda: emulated(spec, device, torch.float32, 2, asked.tokens),
        "emulated_4": lambda: emulated(replace(spec, layers=spec.layers[:8]), device, torch.float32, 4, asked.tokens),
        "world_of_one": lambda: world_of_one(spec, device, torch.bfloat16, 4 * asked.tokens),
    }
    if device.type == "cuda":
        tests["recorded_sum"] = lambda: recorded_sum(device)
    for name, test in tests.items():
        begin_s = time.perf_counter()
        try:
            results[name] = test() | {"seconds": round(time.perf_counter() - begin_s, 1)}
        except Exception as error:  # the others still tell what they tell
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        if device.type == "cuda":
            torch.cuda.empty_cache()
        print(name, json.dumps(results[name]), flush=True)
    print(json.dumps(results))
    return int(any("error" in one for one in results.values() if isinstance(one, dict)))


if __name__ == "__main__":
    sys.exit(main())
