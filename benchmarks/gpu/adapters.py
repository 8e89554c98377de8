"""Adapters on a GPU: 64 sequences over 1, 8 and 32 adapters of rank 16 on all linears, against the base alone, by turns.

    python -m benchmarks.gpu.adapters [--model dummy:llama-3.1-8b] [--rank 16] [--turns 5]

Weights are made up, adapters too. Figures are shares of the base's tokens a second: `plain` of a model without any adapters
loaded, `base` of base-only traffic on the model that serves them. Beside it, what laying a cold adapter on the device takes.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.cpu.adapters import write
from penstock import LLM, SamplingParams

STREAMS, PROMPT, TOKENS = 64, 128, 128


def timed(llm: LLM, names: list[str], count: int) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    prompts = [[(7 * n + i) % 1000 for i in range(PROMPT)] for n in range(len(names))]
    begin_s = time.perf_counter()
    llm.generate(prompts, params, adapter=names)
    return time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--adapters", type=int, default=32)
    asked = parser.parse_args()
    options = {"max_context": 1024, "prefix_caching": False, "speculate": "off"}
    with LLM(asked.model, **options) as llm:
        spec = llm.spec
        plain = [timed(llm, [""] * STREAMS, TOKENS) for _ in range(asked.turns + 1)][1:]
    with tempfile.TemporaryDirectory() as scratch:
        count = asked.adapters
        adapters = {f"a{n}": write(Path(scratch) / f"a{n}", spec, asked.rank, n) for n in range(count)}
        cases = {n: [f"a{i % n}" for i in range(STREAMS)] for n in (1, 8, 32) if n <= count}
        with LLM(asked.model, adapters=adapters, max_adapters=count, max_adapter_rank=asked.rank, **options) as llm:
            first = [timed(llm, [name], 1) for name in adapters]
            warm = [timed(llm, [name], 1) for name in adapters]
            shares: dict[int, list[float]] = {n: [] for n in cases}
            base: list[float] = []
            for turn in range(asked.turns + 1):
                alone = timed(llm, [""] * STREAMS, TOKENS)
                found = {n: timed(llm, names, TOKENS) for n, names in cases.items()}
                if turn:
                    base.append(alone)
                    for n, seconds in found.items():
                        shares[n].append(alone / seconds)
    print(f"plain {STREAMS * TOKENS / statistics.median(plain):,.0f} tok/s", flush=True)
    print(f"base on an adapter server: {statistics.median(plain) / statistics.median(base):.3f} of plain", flush=True)
    for n, found_shares in shares.items():
        print(f"{n} adapters of rank {asked.rank}: {statistics.median(found_shares):.3f} of base", flush=True)
    extra = [(cold - hot) * 1e3 for cold, hot in zip(first[1:], warm[1:])]
    print(f"a cold adapter takes {statistics.median(extra):.1f} ms longer to a first token", flush=True)


if __name__ == "__main__":
    main()
