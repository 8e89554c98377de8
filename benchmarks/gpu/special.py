"""What one row that asks for more costs the others: decode steps of many sequences on recorded graphs, by turns.

    python -m benchmarks.gpu.special [--model llama-3.1-8b] [--sequences 32] [--json FILE]

Two steps are under way at a time, as in the engine. Each kind of row is measured in turn with plain rows, several times over;
the ratio is that of the medians.
"""

import argparse
import json
import random
import statistics
import time
from collections import deque

import torch

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models import catalog

BLOCK_SIZE, MAX_CONTEXT, NUM_IN = 16, 1024, 128
PLAIN = SamplingParams(temperature=0.0)
KINDS: dict[str, SamplingParams] = {
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.3),
    "bias": SamplingParams(temperature=0.0, logit_bias=tuple((token, 1.0) for token in range(100, 400))),
    "logprobs": SamplingParams(temperature=0.0, logprobs=20),
    "allowed": SamplingParams(temperature=0.0, allowed_token_ids=tuple(range(1000, 3000))),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    "all at once": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.9, seed=1, presence_penalty=0.5, logprobs=5, logit_bias=((7, 2.0),)
    ),
}


class Batches:
    """Sequences that go on together, a token a step."""

    def __init__(self, runner: CudaRunner, params: list[SamplingParams], first_step: int) -> None:
        self._runner = runner
        self._step = first_step
        numbers = random.Random(first_step)
        blocks_each = MAX_CONTEXT // BLOCK_SIZE
        chunks = []
        for row, each in enumerate(params):
            prompt = tuple(numbers.randrange(100, 30_000) for _ in range(NUM_IN))
            blocks = tuple(range(row * blocks_each, (row + 1) * blocks_each))
            arrival = Arrival(each, 0, NUM_IN, (), "")
            chunks.append(Chunk(row, 0, NUM_IN, prompt, blocks, True, arrival))
        for low in range(0, len(chunks), 8):
            self._runner.launch(Batch(self._next(), tuple(chunks[low : low + 8]))).result()
        self._count = len(params)
        self._position = NUM_IN

    def _next(self) -> int:
        self._step += 1
        return self._step

    def run(self, num_steps: int) -> float:
        """Milliseconds a step."""
        launched: deque[object] = deque()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(num_steps):
            chunks = tuple(Chunk(row, self._position, 1, (), (), True, None) for row in range(self._count))
            launched.append(self._runner.launch(Batch(self._next(), chunks)))
            self._position += 1
            if len(launched) == 2:
                launched.popleft().result()  # type: ignore[attr-defined]
        while launched:
            launched.popleft().result()  # type: ignore[attr-defined]
        return (time.perf_counter() - begun) / num_steps * 1e3


def measure(runner: CudaRunner, count: int, num_special: int, special: SamplingParams, first_step: int) -> float:
    batches = Batches(runner, [special] * num_special + [PLAIN] * (count - num_special), first_step)
    batches.run(6)
    return batches.run(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    count = arguments.sequences
    model = dummy_model(catalog.find(arguments.model), torch.device("cuda"), torch.bfloat16)
    assert isinstance(model, Decoder)
    runner = CudaRunner(model, RunnerShape(count * MAX_CONTEXT // BLOCK_SIZE, BLOCK_SIZE, count, MAX_CONTEXT))
    steps = iter(range(0, 1 << 40, 1 << 16))
    for special in (PLAIN, *KINDS.values()):  # kernels and graphs
        measure(runner, count, 1, special, next(steps))
    results: dict[str, dict[str, float]] = {}
    cases = [(name, 1) for name in KINDS] + [("top_p", count)]
    for name, num_special in cases:
        plain, other = [], []
        for _ in range(arguments.turns):
            plain.append(measure(runner, count, 0, PLAIN, next(steps)))
            other.append(measure(runner, count, num_special, KINDS[name], next(steps)))
        ratio = statistics.median(other) / statistics.median(plain)
        label = f"{num_special} x {name}"
        results[label] = {"plain_ms": statistics.median(plain), "special_ms": statistics.median(other), "ratio": ratio}
        print(
            f"{label:18} plain {results[label]['plain_ms']:.3f} ms, with it {results[label]['special_ms']:.3f} ms, {ratio:.4f}",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"model": arguments.model, "sequences": count, "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
