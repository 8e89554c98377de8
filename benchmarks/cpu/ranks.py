"""Ranks on one machine's CPU: one process against two ranks by turns, and what an exchange takes by size.

python benchmarks/cpu/ranks.py                 SmolLM2-135M in float32, both on all processors
python benchmarks/cpu/ranks.py --exchanges     microseconds of a sum over two processes, shared memory and gloo
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from penstock import LLM, SamplingParams
from penstock.models.ranks import Ranks
from penstock.ops.parallel.collective import sum_over
from penstock.runtime.parallel.world import Meeting, World, open_store

HOST = "127.0.0.1"
SIZES = (576, 576 * 16, 576 * 256, 8192 * 512)
NUM_SUMS = 100


def exchanges(rank: int, port: int, folder: str | None) -> None:
    """One of two ranks: the first prints."""
    torch.set_num_threads(1)
    store = open_store(HOST, port, is_host=False)
    world = World(Ranks(2).place(rank), Meeting(HOST, port, folder=folder), torch.device("cpu"), store)
    for size in SIZES:
        x = torch.ones(size)
        for _ in range(5):
            sum_over(x, world.tensor)
        begin_s = time.perf_counter()
        for _ in range(NUM_SUMS):
            sum_over(x, world.tensor)
        if rank == 0:
            took_s = (time.perf_counter() - begin_s) / NUM_SUMS
            how = "gloo" if folder is None else "shared memory"
            print(json.dumps({"how": how, "bytes": size * 4, "us": round(took_s * 1e6, 1)}), flush=True)
    world.close()


def measure_exchanges() -> None:
    for shares in (True, False):
        store = open_store(HOST, 0, is_host=True)
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            words = [sys.executable, __file__, "--port", str(store.port), "--folder", folder if shares else ""]
            ranks = [subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(2)]
            for process in ranks:
                process.wait()


def by_turns(model: str, turns: int) -> None:
    prompts = [f"Tell me about number {number}." for number in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    settings = {"dtype": "float32", "max_context": 512}
    with LLM(model, **settings) as alone, LLM(model, tensor=2, **settings) as together:
        rates: dict[str, list[float]] = {"one process": [], "two ranks": []}
        for turn in range(turns + 1):
            for name, llm in (("one process", alone), ("two ranks", together)):
                begin_s = time.perf_counter()
                llm.generate(prompts, params)
                if turn:
                    rates[name].append(8 * 32 / (time.perf_counter() - begin_s))
    best = {name: round(max(found), 1) for name, found in rates.items()}
    print(json.dumps({"tokens_per_s": best, "ratio": round(best["two ranks"] / best["one process"], 3)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--exchanges", action="store_true")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--folder")
    asked = parser.parse_args()
    if asked.rank is not None:
        exchanges(asked.rank, asked.port, asked.folder or None)
    elif asked.exchanges:
        measure_exchanges()
    else:
        by_turns(asked.model, asked.turns)


if __name__ == "__main__":
    main()
