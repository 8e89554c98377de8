"""How often a text without the watermark is taken for one that carries it, and how often one that carries it is found.

    python -m benchmarks.watermark [--model default] [--texts 400] [--wiki FILE] [--out FILE]

Unmarked texts are the model's own under seeds of no key, and pieces of a file that people wrote. Marked ones are drawn with a
key's seeds. All are text before they are tokens again, and every place of every stream is tried, as `penstock detect` does.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import LLM, SamplingParams
from penstock.runtime.text.watermark import Evidence, Watermark

MARK = Watermark(b"the key of the benchmark, of 32 B")
NUM_TOKENS = 200
NUM_MARKED = 100
LENGTHS = (100, 200, 300)
LEVELS = (0.5, 0.1, 0.05, 0.01, 1e-4)
SUBJECTS = (
    "the sea",
    "a small town",
    "bread",
    "the history of glass",
    "bees",
    "a long journey",
    "winter",
    "an old bridge",
)
BEGINNINGS = (
    "Once upon a time, there was {}",
    "An essay about {}.",
    "My opinion on {} is",
    "The latest news about {}:",
    "A letter on {}.",
)


def prompts(count: int) -> Iterator[str]:
    for number in range(count):
        yield BEGINNINGS[number // len(SUBJECTS) % len(BEGINNINGS)].format(SUBJECTS[number % len(SUBJECTS)])


def answers(llm: LLM, seeds: Sequence[int], num_tokens: int) -> list[str]:
    asked = [SamplingParams(temperature=1.0, seed=seed, max_tokens=num_tokens, ignore_eos=True) for seed in seeds]
    return [each.choices[0].text for each in llm.generate(list(prompts(len(seeds))), asked)]


def rates(values: Sequence[Evidence]) -> dict[str, float]:
    """Share of texts taken for marked ones where so many false positives are allowed."""
    return {f"{level:g}": sum(each.p <= level for each in values) / len(values) for level in LEVELS}


def summary(values: Sequence[Evidence]) -> dict[str, object]:
    ordered = sorted(each.z for each in values)
    at = {share: round(ordered[round(share * (len(ordered) - 1))], 2) for share in (0.0, 0.1, 0.5, 0.9, 1.0)}
    return {"texts": len(values), "z_min_p10_p50_p90_max": list(at.values()), "taken_for_marked": rates(values)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--wiki", type=Path, help="a file that people wrote")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    source, found = random.Random(41), dict[str, object]()

    def tell(name: str, values: Sequence[Evidence]) -> None:
        found[name] = summary(values)
        print(name, json.dumps(found[name]), flush=True)
        if asked.out is not None:
            asked.out.write_text(json.dumps({"model": asked.model, "tokens": NUM_TOKENS, **found}, indent=1) + "\n")

    with LLM(asked.model, max_context=512) as llm:
        encode = llm.files.tokenizer.encode
        if asked.wiki is not None:
            ids = encode(asked.wiki.read_text(), special=False, parse_special=False)
            begins = range(0, NUM_TOKENS * asked.texts, NUM_TOKENS)
            tell("people", [MARK.evidence(ids[at : at + NUM_TOKENS]) for at in begins if at + NUM_TOKENS <= len(ids)])
        marked = answers(llm, [MARK.seed(source.getrandbits(60)) for _ in range(NUM_MARKED)], max(LENGTHS))
        for length in LENGTHS:
            tell(f"marked, {length} tokens", [MARK.evidence(encode(text, special=False)[:length]) for text in marked])
        unmarked = answers(llm, [source.getrandbits(60) for _ in range(asked.texts)], NUM_TOKENS)
        tell("unmarked", [MARK.evidence(encode(text, special=False)) for text in unmarked])
    return 0


if __name__ == "__main__":
    sys.exit(main())
