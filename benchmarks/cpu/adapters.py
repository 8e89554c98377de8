"""Decode steps of a packed model on a CPU, with and without adapters, by turns: 8 streams over none, 1, 4 and 8 adapters.

    python -m benchmarks.cpu.adapters [--model default] [--rank 8] [--turns 6] [--cold 1000] [--asked 400]

Adapters are of random numbers on all linears. Figures are shares of the base's tokens a second, median over turns. `--cold`
asks instead for so many adapters that lie in files, 16 on the device, some far more often than others, beside generations.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.cold_adapters import Beside, cold, write, written
from penstock import LLM, SamplingParams
from penstock.assembly.engine import load, make_engine, size
from penstock.config import configure

STREAMS, TOKENS = 8, 48
SLOTS, BESIDE, PROMPT = 16, 6, 16
"""Of the traffic over adapters that lie in files alone."""


def compare(model: str, rank: int, turns: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as scratch:
        with LLM(model, max_context=512) as llm:
            spec = llm.spec
        adapters = {f"a{n}": write(Path(scratch) / f"a{n}", spec, rank, n) for n in range(8)}
        cases = {0: [""] * STREAMS, **{count: [f"a{n % count}" for n in range(STREAMS)] for count in (1, 4, 8)}}
        with LLM(model, adapters=adapters, max_context=512, speculate="off", prefix_caching=False) as llm:
            prompts = [[5 + n, 9, 31, 12 + n] for n in range(STREAMS)]
            shares: dict[int, list[float]] = {count: [] for count in cases}
            for turn in range(turns + 1):
                seconds = {}
                for count, names in cases.items():
                    begin_s = time.process_time()
                    llm.generate(prompts, params, adapter=names)
                    seconds[count] = time.process_time() - begin_s
                if turn:
                    for count in cases:
                        shares[count].append(seconds[0] / seconds[count])
    for count, found in shares.items():
        print(f"{count} adapters of rank {rank}: {statistics.median(found):.3f} of base", flush=True)


def ask_cold(model: str, rank: int, num_adapters: int, num_asked: int) -> None:
    """As a server's engine would: adapters are read by threads of their own."""
    options = {"model": model, "max_context": 512, "prefix_caching": False, "speculate": "off", "max_sequences": 16}
    loaded = load(configure(**options))
    with tempfile.TemporaryDirectory() as scratch:
        paths = written(Path(scratch), loaded.spec, rank, num_adapters + 1)
        named = tuple(f"{Path(path).name}={path}" for path in paths)
        config = configure(**options, adapters=named, max_adapters=SLOTS, max_adapter_rank=rank)
        engine = make_engine(config, loaded, size(config, loaded), warms_up=True)
        cold(engine, paths[1:], paths[0], num_asked, Beside(engine, BESIDE, PROMPT))
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--cold", type=int, default=0, help="adapters that lie in files alone")
    parser.add_argument("--asked", type=int, default=400, help="requests for these")
    asked = parser.parse_args()
    if asked.cold:
        ask_cold(asked.model, asked.rank, asked.cold, asked.asked)
    else:
        compare(asked.model, asked.rank, asked.turns)


if __name__ == "__main__":
    main()
