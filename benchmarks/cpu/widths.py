"""What a step costs by how many tokens of each sequence it computes: drafts checked against a plain step, by turns.

    python benchmarks/cpu/widths.py [--model default] [--batch 1 8 32] [--widths 1 2 3 4 5 6 7 8] [--context 256]
        [--turns 40] [--out record.json]

The runner alone: sequences of `--context` random tokens take the same position again and again, with drafts that never come
true, so that steps differ in their width and nothing else. `ratio` is the median over that of width 1. `--cpu-time` counts
as in `speculation.py`.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.runtime.core.batch import Arrival, Batch, Chunk

GREEDY = SamplingParams(temperature=0.0)


class Rows:
    """Sequences of a runner whose scheduler is left out."""

    def __init__(self, llm: LLM, count: int, context: int) -> None:
        self.runner = llm.engine.runner
        self.vocab_size = llm.spec.vocab_size
        self.count, self.context = count, context
        self.num_steps = 1 << 20
        self.clock = time.perf_counter
        self.random = random.Random(5)
        size = llm.engine.scheduler.limits.block_size
        most = -(-(context + 32) // size)
        for row in range(count):
            blocks = tuple(range(row * most, (row + 1) * most))
            arrival = Arrival(GREEDY, 0, context, (), "")
            prompt = self.tokens(context)
            self.launch([Chunk(row, 0, context, prompt, blocks, True, arrival)])

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(100, self.vocab_size - 100) for _ in range(count))

    def launch(self, chunks: list[Chunk]) -> None:
        self.num_steps += 1
        self.runner.launch(Batch(self.num_steps, tuple(chunks))).result()

    def chunks(self, width: int) -> list[Chunk]:
        drafts = [self.tokens(width - 1) for _ in range(self.count)]
        return [Chunk(row, self.context, width, tokens, (), True, None, width - 1) for row, tokens in enumerate(drafts)]

    def step_s(self, width: int) -> float:
        chunks = self.chunks(width)
        begin_s = self.clock()
        self.launch(chunks)
        return self.clock() - begin_s

    def queued_s(self, width: int, count: int) -> float:
        """A step's share of several that are launched before the first of them is over."""
        chunks = tuple(self.chunks(width))
        self.launch(list(chunks))
        begin_s = time.perf_counter()
        for _ in range(count):
            self.num_steps += 1
            ticket = self.runner.launch(Batch(self.num_steps, chunks))
        ticket.result()
        return (time.perf_counter() - begin_s) / count


def measure(llm: LLM, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    rows = Rows(llm, batch, options.context)
    rows.clock = time.process_time if options.cpu_time else time.perf_counter
    times: dict[int, list[float]] = {width: [] for width in options.widths}
    for turn in range(options.turns + 2):
        for width in options.widths:
            taken_s = rows.step_s(width)
            if turn >= 2:
                times[width].append(taken_s)
    medians = {width: statistics.median(each) for width, each in times.items()}
    plain = medians[options.widths[0]]
    return {
        "batch": batch,
        "step_ms": {width: round(median * 1000, 3) for width, median in medians.items()},
        "ratio": {width: round(median / plain, 3) for width, median in medians.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--widths", nargs="+", type=int, default=list(range(1, 9)))
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records = []
    for batch in options.batch:
        with LLM(options.model, max_context=options.context + 64, max_sequences=batch, speculate="off") as llm:
            records.append(measure(llm, batch, options))
            print(json.dumps(records[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(vars(options) | {"out": str(options.out), "records": records}, indent=1))


if __name__ == "__main__":
    main()
