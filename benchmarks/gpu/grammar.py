"""What grammars cost on a GPU: tokens a second free, under one schema, under a schema each, half and half, by turns.

    python3 -m benchmarks.gpu.grammar [--model dummy:llama-3.1-8b] [--sequences 128] [--tokens 128] [--turns 3] [--json FILE]

The weights are made up, and so is the vocabulary: bytes, words with and without a blank before them, numbers, signs of JSON, as
many as the model scores. Answers end at their length: schemas ask for more texts than that. Prints the median of each way's
turns, its ratio to free text, and microseconds a mask.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from llguidance import LLTokenizer

from benchmarks.grammar import ways
from penstock import LLM
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.text.grammar.compiler import GrammarCompiler

NUM_IN = 128
ENDINGS = ("a", "e", "i", "o", "u", "an", "er", "ing")
SYLLABLES = tuple(first + second for first in "bcdfghklmnprstvw" for second in ENDINGS)
SIGNS = ('{"', '":', '": "', '", "', '"}', "},", "[{", "}]", ", ", ': "', '"\n', "\n", "\n  ", "```", "...")


class MadeUpWords:
    """A vocabulary as the grammar engine reads one; the names are the engine's."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 0
    special_token_ids = (0,)

    def __init__(self, size: int) -> None:
        words: dict[bytes, None] = {b"<end>": None}
        words |= dict.fromkeys(bytes((byte,)) for byte in range(256))
        words |= dict.fromkeys(sign.encode() for sign in SIGNS)
        words |= dict.fromkeys(str(number).encode() for number in range(1000))
        numbers = random.Random(1)
        while len(words) < size:
            word = "".join(numbers.choices(SYLLABLES, k=numbers.choice((1, 2, 2, 3, 3, 4))))
            for way in (word, f" {word}", word.capitalize(), f" {word.capitalize()}"):
                words[way.encode()] = None
        self.tokens = list(words)[:size]

    def __call__(self, text: str) -> list[int]:
        return [1 + byte for byte in text.encode()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = {"max_sequences": options.sequences, "max_context": NUM_IN + options.tokens + 64}
    with LLM(options.model, **settings) as llm:
        made_up = MadeUpWords(llm.spec.vocab_size)
        grammars = GrammarCompiler(lambda: LLTokenizer(made_up, eos_token=[0]))  # type: ignore[arg-type]
        began = time.perf_counter()
        grammars.warm_up()
        vocabulary_s = time.perf_counter() - began
        llm.engine.proposer.grammar_state = grammar_state = GrammarState(grammars, time.monotonic)
        numbers = random.Random(2)
        prompts = [tuple(numbers.randrange(2000, 30_000) for _ in range(NUM_IN)) for _ in range(options.sequences)]
        every = ways(options.sequences, options.tokens)
        rates: dict[str, list[float]] = {name: [] for name in every}
        masks: dict[str, list[float]] = {name: [] for name in every}
        for turn in range(options.turns + 1):
            for name, params in every.items():
                counts = grammar_state.counts
                before, began = (counts.num_masks, counts.mask_s), time.perf_counter()
                completions = llm.generate(prompts, params)
                seconds = time.perf_counter() - began
                num_tokens = sum(len(completion.choices[0].token_ids) for completion in completions)
                if turn:  # the first warms up
                    rates[name].append(num_tokens / seconds)
                    num_masks = counts.num_masks - before[0]
                    masks[name].append((counts.mask_s - before[1]) / max(num_masks, 1) * 1e6)
    free = statistics.median(rates["free"])
    record = {
        "model": options.model,
        "sequences": options.sequences,
        "tokens": options.tokens,
        "vocab_size": len(made_up.tokens),
        "vocabulary_s": round(vocabulary_s, 2),
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ratio": {name: round(statistics.median(values) / free, 3) for name, values in rates.items()},
        "mask_mean_us": {name: round(statistics.median(values), 1) for name, values in masks.items()},
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
