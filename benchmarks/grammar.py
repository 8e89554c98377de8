"""What grammars cost: tokens a second free, under one schema, under many, and half and half, by turns.

    python benchmarks/grammar.py [--model default] [--sequences 32] [--tokens 64] [--turns 3]

All answers have the same number of tokens: schemas ask for a text longer than that, so nobody ends early. `keys` is a schema of
long keys, whose forced tokens take no step each. Prints each way's best turn, its ratio to free text, and mean time a mask.
"""

import argparse
import json
import time

from penstock import LLM, SamplingParams

LONG = {"type": "string", "minLength": 4000}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with LLM(options.model, max_sequences=options.sequences) as llm:
        every = ways(options.sequences, options.tokens)
        prompts = [f"Write a report about place number {number}, in JSON." for number in range(options.sequences)]
        best: dict[str, float] = dict.fromkeys(every, 0.0)
        llm.generate(prompts[:2], SamplingParams(max_tokens=2, schema=schema(0)))
        counts = llm.engine.matching.counts if llm.engine.matching is not None else None
        before = (counts.num_masks, counts.mask_s) if counts else (0, 0.0)
        for _ in range(options.turns):
            for name, params in every.items():
                began = time.perf_counter()
                completions = llm.generate(prompts, params)
                num_tokens = sum(len(completion.choices[0].token_ids) for completion in completions)
                best[name] = max(best[name], num_tokens / (time.perf_counter() - began))
        masks = (counts.num_masks - before[0], counts.mask_s - before[1]) if counts else (0, 0.0)
    print(
        json.dumps(
            {
                "model": options.model,
                "sequences": options.sequences,
                "tokens": options.tokens,
                "tokens_per_s": {name: round(rate, 1) for name, rate in best.items()},
                "ratio": {name: round(rate / best["free"], 3) for name, rate in best.items()},
                "mask_mean_us": round(masks[1] / max(masks[0], 1) * 1e6, 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
