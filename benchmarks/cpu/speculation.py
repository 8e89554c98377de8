"""Speculation against none, by turns in one process over the same weights: tokens a second, ratio, tokens a step, equality.

    python benchmarks/cpu/speculation.py [--model default] [--cases quote edit chat random] [--batch 1 8]
        [--speculate auto] [--draft-tokens N] [--draft-model PATH] [--turns 5] [--tokens 200] [--out record.json]

`ratio` is of decoding alone: from the first token of the last sequence to its last. `whole` is of all the time, prompts
included: sequences that begin early and draft while others' prompts are computed have less left to decode. Each turn is another
tenant's, so that nothing is known of earlier answers. `same` says whether all tokens are those of plain decoding; `steps` is
plain steps over speculated ones, which a busy machine cannot change. `--cpu-time` counts the seconds that the process had a
processor instead of those on the clock: for a machine that others use, on one core (`taskset -c 0`), where no thread spins for
another.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.config import configure
from penstock.runtime.core.request import Request

ASK: dict[str, str] = json.loads((Path(__file__).parents[1] / "data" / "speculation-questions.json").read_text())
"""Questions by case."""


def prompts(llm: LLM, case: str, count: int) -> list[tuple[int, ...]]:
    tokenizer = llm.files.tokenizer
    if case == "random":
        choose = random.Random(7)
        return [tuple(choose.randrange(100, llm.spec.vocab_size - 100) for _ in range(96)) for _ in range(count)]
    text = f"<|im_start|>user\n{ASK[case]}<|im_end|>\n<|im_start|>assistant\n"
    return [tuple(tokenizer.encode(f"{i or ''}{text}", special=True)) for i in range(count)]


class Side:
    """An engine, and how fast it decodes."""

    def __init__(self, llm: LLM, clock: Callable[[], float]) -> None:
        self.llm = llm
        self.clock = clock
        llm.engine._clock = clock  # what drafts cost is judged by the same time
        self.rates: list[float] = []
        self.seconds: list[float] = []
        self.num_steps = 0
        self.tokens: dict[int, list[int]] = {}

    def run(self, asked: list[tuple[int, ...]], num_tokens: int, temperature: float, is_open: bool) -> None:
        engine = self.llm.engine
        params = SamplingParams(
            temperature=temperature,
            seed=3,
            max_tokens=num_tokens,
            ignore_eos=not is_open,
            stop_token_ids=tuple(self.llm.files.tokenizer.eos_ids),
        )
        tenant = f"turn {len(self.rates)}"
        submitted_s = self.clock()
        for number, prompt in enumerate(asked):
            engine.submit(
                Request(request_id=time.monotonic_ns(), prompt=prompt, params=params, salt=str(number), tenant=tenant)
            )
        self.tokens, started, begin_s, begun, steps = {}, set(), 0.0, 0, engine.num_steps
        order: dict[int, int] = {}
        while engine.has_work:
            deltas = engine.step()
            for delta in deltas:
                place = order.setdefault(delta.request_id, len(order))
                self.tokens.setdefault(place, []).extend(delta.token_ids)
                if delta.token_ids and place not in started:
                    started.add(place)
                    if len(started) == len(asked):
                        begin_s, begun, steps = self.clock(), self.count, engine.num_steps
        self.rates.append((self.count - begun) / (self.clock() - begin_s))
        self.seconds.append(self.clock() - submitted_s)
        self.num_steps = engine.num_steps - steps

    @property
    def count(self) -> int:
        return sum(map(len, self.tokens.values()))


def measure(llm: LLM, case: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {"speculate": options.speculate, "draft_tokens": options.draft_tokens}
    if options.draft_model:
        settings["draft_model"] = options.draft_model
    clock = time.process_time if options.cpu_time else time.perf_counter
    configs = configure(llm.config, speculate="off"), configure(llm.config, **settings)
    sides = [Side(LLM.over(llm.loaded, config), clock) for config in configs]
    asked = prompts(llm, case, batch)
    for turn in range(options.turns + 1):
        for side in sides if turn % 2 else reversed(sides):
            side.run(asked, options.tokens, options.temperature, is_open=case in ASK)
    plain, guessing = sides
    medians = [statistics.median(side.rates[1:]) for side in sides]
    proposals = guessing.llm.engine.proposer.proposals
    return {
        "case": case,
        "batch": batch,
        "tokens": plain.count,
        "same": plain.tokens == guessing.tokens,
        "plain_tokens_per_s": round(medians[0], 2),
        "tokens_per_s": round(medians[1], 2),
        "ratio": round(statistics.median(b / a for a, b in zip(plain.rates[1:], guessing.rates[1:])), 3),
        "whole": round(statistics.median(a / b for a, b in zip(plain.seconds[1:], guessing.seconds[1:])), 3),
        "steps": round(plain.num_steps / max(guessing.num_steps, 1), 3),
        "accepted": round(proposals.num_accepted / max(proposals.num_checked, 1), 3) if proposals else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--cases", nargs="+", default=["quote", "edit", "write", "chat", "random"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--draft-tokens", type=int, default=None)
    parser.add_argument("--draft-model", default="")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records = []
    with LLM(options.model, max_context=2048, max_sequences=max(options.batch)) as llm:
        for case in options.cases:
            for batch in options.batch:
                records.append(measure(llm, case, batch, options))
                print(json.dumps(records[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(vars(options) | {"out": str(options.out), "records": records}, indent=1))


if __name__ == "__main__":
    main()
