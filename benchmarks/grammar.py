"""What grammars cost: tokens a second free, under one schema, under many, and half and half, by turns.

    python -m benchmarks.grammar [--model default] [--sequences 32] [--tokens 64] [--turns 3] [--json FILE]

All answers have the same number of tokens: schemas ask for more texts than that, so nobody ends early. `keys` is a schema of
long keys, whose forced tokens take no step each. Prints the median of each way's turns, its ratio to free text, what a mask
takes, and the time to a first token: free, under a schema that was seen before, under a new one. Processor time a token stands
beside: unlike the rates it says something on a machine that others use too.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.runtime.engine.grammar_state import Grammars

LONG = {"type": "array", "items": {"type": "string"}, "minItems": 2000}


def schema(number: int) -> dict[str, object]:
    properties = {"title": {"enum": [f"t{number}"]}, "body": LONG}
    return {"type": "object", "properties": properties, "required": ["title", "body"], "additionalProperties": False}


def keys(number: int) -> dict[str, object]:
    names = [
        f"the_{word}_measured_in_the_laboratory_number_{number}" for word in ("height", "width", "depth", "mass", "age")
    ]
    return {
        "type": "object",
        "properties": {name: {"enum": [1, 2]} for name in names} | {"notes": LONG},
        "required": [*names, "notes"],
        "additionalProperties": False,
    }


def ways(count: int, num_tokens: int) -> dict[str, list[SamplingParams]]:
    def params(**form: object) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, **form)  # type: ignore[arg-type]

    return {
        "free": [params() for _ in range(count)],
        "one schema": [params(schema=schema(0)) for _ in range(count)],
        "a schema each": [params(schema=schema(number)) for number in range(count)],
        "half and half": [params(schema=schema(number)) if number % 2 else params() for number in range(count)],
        "long keys": [params(schema=keys(number)) for number in range(count)],
    }


class TimedFills:
    """Grammars whose masks are timed: microseconds each, of the fill it was made in."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self.each_us: list[float] = []

    def compile(self, kind: str, source: str) -> Any:
        return self._grammars.compile(kind, source)

    def fill(self, entries: Sequence[tuple[Any, tuple[int, ...]]], bits: memoryview, num_words: int) -> None:
        began = time.perf_counter()
        self._grammars.fill(entries, bits, num_words)
        num_rows = sum(1 + len(drafts) for _, drafts in entries)
        self.each_us += [(time.perf_counter() - began) / num_rows * 1e6] * num_rows


def first_token_ms(llm: LLM, number: int, **form: object) -> float:
    """Until the first token of an answer to a prompt that no cache knows."""
    prompt = f"{number} is the number of a place; write a report about it, in JSON."
    began = time.perf_counter()
    updates = llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=4, **form))  # type: ignore[arg-type]
    next(iter(updates))
    taken = time.perf_counter() - began
    for _ in updates:
        pass
    return taken * 1000


def first_tokens(llm: LLM, count: int) -> dict[str, dict[str, float]]:
    """Free, under a schema that was seen before, under one that is new; by turns."""
    times: dict[str, list[float]] = {"free": [], "seen": [], "new": []}
    first_token_ms(llm, 0, schema=schema(0))
    for number in range(1, count + 1):
        times["free"].append(first_token_ms(llm, 3 * number))
        times["seen"].append(first_token_ms(llm, 3 * number + 1, schema=schema(0)))
        times["new"].append(first_token_ms(llm, 3 * number + 2, schema=keys(1000 + number)))
    return {name: {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)} for name, values in times.items()}


def quantile(values: Sequence[float], place: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(int(place * len(ordered)), len(ordered) - 1)], 2) if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--first-tokens", type=int, default=20, help="answers of each kind that are timed to their first token"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with LLM(options.model, max_sequences=options.sequences) as llm:
        grammar_state = llm.engine.proposer.grammar_state
        assert grammar_state is not None, "grammars need llguidance"
        grammar_state.grammars = timed = TimedFills(grammar_state.grammars)
        every = ways(options.sequences, options.tokens)
        prompts = [f"Write a report about place number {number}, in JSON." for number in range(options.sequences)]
        rates: dict[str, list[float]] = {name: [] for name in every}
        cpu_ms: dict[str, list[float]] = {name: [] for name in every}
        llm.generate(prompts, every["a schema each"])
        timed.each_us.clear()
        for _ in range(options.turns):
            for name, params in every.items():
                began, used = time.perf_counter(), time.process_time()
                completions = llm.generate(prompts, params)
                num_tokens = sum(len(completion.choices[0].token_ids) for completion in completions)
                rates[name].append(num_tokens / (time.perf_counter() - began))
                cpu_ms[name].append((time.process_time() - used) / num_tokens * 1000)
        first = first_tokens(llm, options.first_tokens)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    record = {
        "model": options.model,
        "sequences": options.sequences,
        "tokens": options.tokens,
        "turns": options.turns,
        "tokens_per_s": {name: round(rate, 1) for name, rate in medians.items()},
        "ratio": {name: round(rate / medians["free"], 3) for name, rate in medians.items()},
        "cpu_ms_per_token": {name: round(statistics.median(each), 3) for name, each in cpu_ms.items()},
        "mask_us": {
            "mean": round(statistics.fmean(timed.each_us), 1),
            "p50": quantile(timed.each_us, 0.5),
            "p99": quantile(timed.each_us, 0.99),
        },
        "first_token_ms": first,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
