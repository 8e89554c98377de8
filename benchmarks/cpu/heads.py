"""Heads against no guesses on held-out chat, one stream, by turns over the same weights.

    python -m benchmarks.cpu.heads eagle:DIR [medusa:DIR self ...] [--model default] [--tokens 128] [--turns 3]
        [--draft-tokens N] [--text FILE] [--prompts 8] [--cpu-time] [--out record.json]

The questions are in no training text; `--text` gives others, paragraph by paragraph. A ratio is decoding speed with guesses
over that without, of one question in one turn; the median over all is told, and tokens a step, which a busy machine cannot
change. `--cpu-time` is that of benchmarks/cpu/speculation.py.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu.speculation import Side
from penstock import LLM
from penstock.config import configure

QUESTIONS = (
    "My neighbour's dog barks all night. How can I talk to him about it without a quarrel?",
    "What is the difference between a lake and a pond?",
    "I have rice, eggs and spinach. What can I cook for dinner?",
    "Please explain what a mortgage is and what I should watch out for.",
    "Which is better for a small flat, a sofa bed or an armchair?",
    "Tell me about the life of Marie Curie.",
    "How do I remove a coffee stain from a white shirt?",
    "Our team misses every deadline. What could a new manager try first?",
    "Why do leaves change their colour in autumn?",
    "Can you suggest a plan for a weekend in Lisbon?",
    "What does a compiler do?",
    "Write a thank-you note to a teacher who helped me with mathematics.",
)


def questions(file: Path | None) -> Sequence[str]:
    return QUESTIONS if file is None else [part.strip() for part in file.read_text().split("\n\n")]


def measure(llm: LLM, name: str, options: argparse.Namespace) -> dict[str, Any]:
    clock = time.process_time if options.cpu_time else time.perf_counter
    config = configure(llm.config, speculate=name, draft_tokens=options.draft_tokens)
    off = configure(llm.config, speculate="off")
    plain, guessing = (Side(LLM.over(llm.loaded, each), clock) for each in (off, config))
    ratios, steps, same = [], [], []
    for turn in range(options.turns + 1):
        for number, question in enumerate(questions(options.text)[: options.prompts]):
            asked = [llm.chat_tokens(question)]
            for side in (plain, guessing) if (turn + number) % 2 else (guessing, plain):
                side.run(asked, options.tokens, 0.0, is_open=True)
            same.append(plain.tokens == guessing.tokens)
            if turn:  # the first turn is for warming up
                ratios.append(guessing.rates[-1] / plain.rates[-1])
                steps.append(plain.num_steps / max(guessing.num_steps, 1))
    proposals = guessing.llm.engine.proposer.proposals
    assert proposals is not None
    drafter = proposals.speculator.drafters[-1]
    return {
        "drafter": name.partition(":")[0],
        "same": all(same),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(value, 3) for value in statistics.quantiles(ratios, n=4)[::2]],
        "tokens_per_step": round(statistics.median(steps), 3),
        "accepted": round(proposals.num_accepted / max(proposals.num_checked, 1), 3),
        "plain_tokens_per_s": round(statistics.median(plain.rates), 1),
        "draft_ms": [round(1000 * drafter.seconds(count), 3) for count in (1, 2, 3)],
        "step_ms": {width: round(1000 * proposals.speculator.cost(width), 3) for width in (1, 2, 3, 4)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+")
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--draft-tokens", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records = []
    with LLM(options.model, device="cpu", max_context=1024, max_sequences=2) as llm:
        for name in options.drafters:
            records.append(measure(llm, name, options))
            print(json.dumps(records[-1]), flush=True)
    if options.out:
        about = {
            "model": options.model,
            "machine": platform.processor() or platform.machine(),
            "tokens": options.tokens,
            "cpu_time": options.cpu_time,
            "text": None if options.text is None else options.text.name,
        }
        options.out.write_text(json.dumps(about | {"turns": options.turns, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
