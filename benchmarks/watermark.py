"""How often a text without the watermark is taken for one that carries it, and how often one that carries it is found.

    python -m benchmarks.watermark people FILE | unmarked | marked   [--first 0] [--count 100] --lines LINES
    python -m benchmarks.watermark summary --lines LINES

`unmarked` texts are the default model's own under seeds of no key, `people` are pieces of a file that people wrote, `marked`
ones are drawn with a key's seeds. All are text before they are tokens again, and every place of every stream is tried, as
`penstock detect` does. Each call adds lines of JSON: parts may be run at times that suit.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.runtime.files import open_files
from penstock.runtime.text.watermark import Watermark

MARK = Watermark(b"the key of the benchmark, of 32 B")
NUM_TOKENS = 200
MARKED_LENGTHS = (100, 200, 300)
LEVELS = (0.5, 0.1, 0.05, 0.01, 1e-4)
SUBJECTS = ("the sea", "a small town", "bread", "the history of glass", "bees", "a journey", "winter", "a bridge")
BEGINNINGS = ("Once upon a time, there was {}", "An essay about {}.", "My opinion on {} is", "News about {}:", "Of {}.")


def texts(numbers: range, *, is_marked: bool) -> list[str]:
    """Of the default model at temperature 1, each with a seed that follows from its number."""
    chances = [random.Random(number).getrandbits(60) for number in numbers]
    length = max(MARKED_LENGTHS) if is_marked else NUM_TOKENS
    asked = [
        SamplingParams(
            temperature=1.0, seed=MARK.seed(chance) if is_marked else chance, max_tokens=length, ignore_eos=True
        )
        for chance in chances
    ]
    prompts = [BEGINNINGS[n // len(SUBJECTS) % len(BEGINNINGS)].format(SUBJECTS[n % len(SUBJECTS)]) for n in numbers]
    with LLM("default", max_context=512, speculate="off") as llm:
        return [each.choices[0].text for each in llm.generate(prompts, asked)]


def pieces(kind: str, file: Path | None, numbers: range) -> Iterator[tuple[str, list[int]]]:
    """What is looked at: its name and its tokens."""
    encode = open_files("default").tokenizer.encode
    if kind == "people" and file is not None:
        ids = encode(file.read_text(), special=False, parse_special=False)
        for number in numbers:
            yield kind, list(ids[number * NUM_TOKENS : (number + 1) * NUM_TOKENS])
        return
    for text in texts(numbers, is_marked=kind == "marked"):
        ids = encode(text, special=False, parse_special=False)
        for length in MARKED_LENGTHS if kind == "marked" else (NUM_TOKENS,):
            yield f"{kind}, {length} tokens", list(ids[:length])


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for kind in dict.fromkeys(line["kind"] for line in lines):
        own = [line for line in lines if line["kind"] == kind]
        z = sorted(line["z"] for line in own)
        taken = {f"{level:g}": sum(line["p"] <= level for line in own) / len(own) for level in LEVELS}
        at = [round(z[round(share * (len(z) - 1))], 2) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
        found[kind] = {"texts": len(own), "z_min_p10_p50_p90_max": at, "taken_for_marked": taken}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("people", "unmarked", "marked", "summary"))
    parser.add_argument("file", type=Path, nargs="?", help="text that people wrote")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--lines", type=Path, required=True)
    asked = parser.parse_args()
    if asked.kind == "summary":
        print(json.dumps(summary([json.loads(line) for line in asked.lines.read_text().splitlines()]), indent=1))
        return 0
    for kind, ids in pieces(asked.kind, asked.file, range(asked.first, asked.first + asked.count)):
        evidence = MARK.evidence(ids)
        with asked.lines.open("a") as file:
            file.write(json.dumps({"kind": kind, "z": evidence.z, "p": evidence.p}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
