"""Texts without end: what forgetting costs in perplexity, and that memory stays what it was.

    python -m benchmarks.long_context perplexity TEXT MODEL --modes full streaming streaming:0+1024 h2o
    python -m benchmarks.long_context endless --tokens 65536

A figure is printed after every so many tokens. `streaming:0+N` is a plain window of N tokens. Full attention begins anew where
the model's context ends. `endless` takes a tiny model: it shows memory, and time is not its matter.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from penstock import LLM
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.models.kinds.forgetting import bounded
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Norm, Rope

NUM_KEPT, NUM_RECENT = 4, 252
BLOCK_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    scored = commands.add_parser("perplexity")
    scored.add_argument("text", type=Path)
    scored.add_argument("model")
    scored.add_argument("--modes", nargs="+", default=["full", "streaming", "streaming:0+1024", "h2o"])
    scored.add_argument("--tokens", type=int, default=16_384)
    scored.add_argument("--every", type=int, default=2048)
    scored.add_argument("--dtype", default="float32")
    endless = commands.add_parser("endless")
    endless.add_argument("--tokens", type=int, default=65_536)
    endless.add_argument("--every", type=int, default=4096)
    asked = parser.parse_args()
    if asked.command == "endless":
        generate(asked.tokens, asked.every)
        return
    for mode in asked.modes:
        score(asked, mode)


def score(asked: argparse.Namespace, mode: str) -> None:
    settings = {} if mode == "full" else {"long_context": mode, "max_context": asked.tokens + 2}
    with LLM(asked.model, dtype=asked.dtype, max_sequences=1, max_batch_tokens=512, **settings) as llm:
        text = llm.files.tokenizer.encode(asked.text.read_text(), special=False)[: asked.tokens]
        longest, start_s = llm.sizing.max_context - 1, time.monotonic()
        total, count, seen = 0.0, 0, 0
        for logprob in (each for part in range(0, len(text), longest) for each in scores(llm, text[part:][:longest])):
            total, count = total + logprob, count + 1
            if count // asked.every != seen or count == len(text) - math.ceil(len(text) / longest):
                seen = count // asked.every
                line = {"mode": mode, "tokens": count, "perplexity": round(math.exp(-total / count), 3)}
                print(json.dumps({**line, "seconds": round(time.monotonic() - start_s)}), flush=True)


def scores(llm: LLM, text: list[int]) -> Iterator[float]:
    """Log probabilities of a text's tokens, but for the first, as steps report them."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    llm.engine.submit(Request(request_id=1, prompt=tuple(text), params=params))
    while llm.engine.has_work:
        for delta in llm.engine.step():
            yield from (each.logprob for each in delta.prompt_logprobs)


def generate(num_tokens: int, every: int) -> None:
    """One answer of so many tokens from a cache for `NUM_KEPT + NUM_RECENT`."""
    context = num_tokens + 464
    layer = Layer(GQA(2, 1, 32, Rope(32), 32**-0.5), GatedMLP(128, "silu"))
    tiny = ModelSpec("llama", hidden_size=64, layers=(layer,) * 2, norm=Norm(), vocab_size=256, max_context=2048)
    spec = bounded(tiny, "first", NUM_KEPT, NUM_RECENT, context)
    num_blocks = math.ceil(context / BLOCK_SIZE) + 8
    groups = CacheGroups(BlockGroup(*spec.cache_layout().groups[0]), (), 8)
    limits = Limits(num_blocks, BLOCK_SIZE, context, 1024, 2, 10, 100_000, groups=groups)
    shape = RunnerShape(num_blocks, BLOCK_SIZE, 2, context, frees=True, num_states=8)
    runner = ModelRunner(dummy_model(spec, torch.device("cpu"), torch.float32), shape)
    engine = Engine(Scheduler(limits), runner, time.monotonic)
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    engine.submit(Request(request_id=1, prompt=tuple(range(100)), params=params))
    count, start_s = 0, time.monotonic()
    while engine.has_work:
        for delta in engine.step():
            before, count = count, count + len(delta.token_ids)
            if count // every != before // every or delta.finish:
                line = {"tokens": count, "resident_mib": resident_mib(), "seconds": round(time.monotonic() - start_s)}
                print(json.dumps(line), flush=True)


def resident_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


if __name__ == "__main__":
    main()
