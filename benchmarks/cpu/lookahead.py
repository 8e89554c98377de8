"""Would lookahead (Jacobi) decoding ever pay here? Tokens a step it gives, beside what steps of its width cost.

    python -m benchmarks.cpu.lookahead [--model default] [--tokens 48] [--windows 2 4 8] [--prompts 4] [--out record.json]

Each step checks a window of guesses; what the model says at each place of the window is the next window's guess. Guesses that
the window does not tell come from the pool of pairs and triples that earlier windows held, as lookahead decoding has it, else
the last token is guessed again. `gain` is tokens a step over the cost of a step of that width; no time is counted for the pool.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cpu.heads import QUESTIONS
from penstock import LLM, SamplingParams
from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.runner import NativeRunner

BLOCK_SIZE, CONTEXT = 16, 512
Pool = dict[tuple[int, ...], int]


class LastStates:
    """What the last step left."""

    def __init__(self) -> None:
        self.hidden = torch.empty(0)

    def put(self, chunks: Any, hidden: Tensor) -> None:
        self.hidden = hidden.clone()


def widen(guesses: list[int], last: int, window: int, pool: Pool) -> list[int]:
    """Fill a window up from the pool."""
    said = [last, *guesses]
    while len(said) <= window:
        said.append(pool.get(tuple(said[-2:]), pool.get(tuple(said[-1:]), said[-1])))
    return said[1 : window + 1]


def decode(model: NativeDecoder, prompt: tuple[int, ...], count: int, window: int) -> tuple[int, list[int]]:
    """Steps it took, and the tokens."""
    runner = NativeRunner(model, RunnerShape(CONTEXT // BLOCK_SIZE, BLOCK_SIZE, 1, CONTEXT))
    sink = runner.states = LastStates()
    blocks = tuple(range(CONTEXT // BLOCK_SIZE))
    arrival = Arrival(SamplingParams(temperature=0.0), 0, len(prompt), (), "")
    output = runner.launch(Batch(1, (Chunk(0, 0, len(prompt), prompt, blocks, True, arrival),))).result()
    said, steps, guesses = [output.tokens[0][0]], 0, list[int]()
    pool: Pool = {}
    while len(said) < count:
        guesses = widen(guesses, said[-1], window, pool)
        start = len(prompt) + len(said) - 1
        steps += 1
        chunk = Chunk(0, start, 1 + window, tuple(guesses), (), True, None, window)
        tokens = runner.launch(Batch(steps + 1, (chunk,))).result().tokens[0]
        told = [int(token) for token in model.likeliest(sink.hidden).tolist()]
        for place in range(len(told) - 2):
            pool[tuple(told[place : place + 1])] = told[place + 1]
            pool[tuple(told[place : place + 2])] = told[place + 2]
        said.extend(tokens)
        guesses = told[len(tokens) :]
    return steps, said[:count]


def step_cost(model: NativeDecoder, widths: list[int], turns: int = 15) -> dict[int, float]:
    runner = NativeRunner(model, RunnerShape(CONTEXT // BLOCK_SIZE, BLOCK_SIZE, 1, CONTEXT))
    arrival = Arrival(SamplingParams(temperature=0.0), 0, 128, (), "")
    chunk = Chunk(0, 0, 128, tuple(range(200, 328)), tuple(range(CONTEXT // BLOCK_SIZE)), True, arrival)
    runner.launch(Batch(1, (chunk,))).result()
    times: dict[int, list[float]] = {width: [] for width in widths}
    number = 1
    for _ in range(turns):
        for width in widths:
            number += 1
            begin_s = time.perf_counter()
            guesses = tuple(range(300, 299 + width))
            runner.launch(Batch(number, (Chunk(0, 128, width, guesses, (), True, None, width - 1),))).result()
            times[width].append(time.perf_counter() - begin_s)
    return {width: statistics.median(seen) for width, seen in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--windows", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records = []
    with LLM(options.model, device="cpu", max_context=CONTEXT, max_sequences=2, speculate="off") as llm:
        model = llm.loaded.network
        assert isinstance(model, NativeDecoder)
        cost = step_cost(model, [1, *(window + 1 for window in options.windows)])
        for window in options.windows:
            steps = 0
            for question in QUESTIONS[: options.prompts]:
                steps += decode(model, llm.chat_tokens(question), options.tokens, window)[0]
            per_step = options.prompts * (options.tokens - 1) / steps
            ratio = cost[window + 1] / cost[1]
            records.append({"window": window, "tokens_per_step": round(per_step, 3), "step_cost": round(ratio, 3)})
            records[-1]["gain"] = round(per_step / ratio, 3)
            print(json.dumps(records[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"model": options.model, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
