"""Speculation on a GPU with made-up weights and drafts that come true with a given chance: measured against the formula.

    python benchmarks/gpu/speculation.py [--model dummy:llama-3.1-8b] [--acceptance 0.6 0.8] [--drafts 4] [--batch 1 8 32]
        [--tokens 400] [--turns 3] [--out record.json]

By turns in one process, over the same weights: plain, then with drafts. A drafter that has read the plain answers tells
the next tokens of each sequence, each wrong with the chance of a rejection. `verify` is a step with drafts over a plain one,
`gain` tokens a second over plain ones, `goal` 90 % of (1 - a^(k+1)) / (1 - a) over `verify`. `same` says that all tokens are
those of plain decoding.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.core.request import Request
from penstock.draft.drafter import NO_GUESS, Guess, View
from penstock.draft.proposals import Proposals
from penstock.draft.rule import tokens_per_round
from penstock.draft.speculator import Speculator


class ToldDrafter:
    """Knows the answers by their prompts."""

    name = "told"

    def __init__(self, answers: dict[tuple[int, ...], list[int]], acceptance: float, vocab_size: int) -> None:
        self._answers = answers
        self._acceptance = acceptance
        self._vocab_size = vocab_size
        self._random = random.Random(1)

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [self._guess(view, most) for view in views]

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        pass

    def _guess(self, view: View, most: int) -> Guess:
        answer = self._answers.get(tuple(view.tokens[: view.num_prompt]))
        if answer is None:
            return NO_GUESS
        place = len(view.tokens) - view.num_prompt
        tokens = [
            token if self._random.random() < self._acceptance else (token + 1) % self._vocab_size
            for token in answer[place : place + most]
        ]
        return Guess(tuple(tokens), self.name)


def run(
    llm: LLM, prompts: list[tuple[int, ...]], num_tokens: int
) -> tuple[dict[tuple[int, ...], list[int]], float, int]:
    """Answers by prompt, seconds and steps from when all have begun to when the first ends."""
    engine = llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    owners = {}
    for number, prompt in enumerate(prompts):
        owners[number] = prompt
        engine.submit(Request(request_id=number, prompt=prompt, params=params, salt=str(time.monotonic_ns())))
    answers: dict[tuple[int, ...], list[int]] = {prompt: [] for prompt in prompts}
    begin_s = end_s = 0.0
    begin_steps = end_steps = 0
    while engine.has_work:
        for delta in engine.step():
            answers[owners[delta.request_id]].extend(delta.token_ids)
            if delta.finish is not None and not end_s:
                end_s, end_steps = time.perf_counter(), engine.num_steps
        if not begin_s and all(answers.values()):
            begin_s, begin_steps = time.perf_counter(), engine.num_steps
    return answers, end_s - begin_s, end_steps - begin_steps


def measure(llm: LLM, batch: int, acceptance: float, options: argparse.Namespace) -> dict[str, Any]:
    choose = random.Random(batch)
    vocab_size = llm.spec.vocab_size
    prompts = [tuple(choose.randrange(100, vocab_size - 100) for _ in range(128)) for _ in range(batch)]
    plain_s: list[float] = []
    drafted_s: list[float] = []
    plain_steps = drafted_steps = 0
    is_same = True
    for turn in range(options.turns + 1):
        llm.engine.proposals = None
        answers, seconds, plain_steps = run(llm, prompts, options.tokens)
        plain_s += [seconds] if turn else []
        drafter = ToldDrafter(answers, acceptance, vocab_size)
        llm.engine.proposals = Proposals(llm.engine.scheduler, Speculator([drafter], length=options.drafts))
        found, seconds, drafted_steps = run(llm, prompts, options.tokens)
        drafted_s += [seconds] if turn else []
        is_same &= found == answers
    plain, drafted = statistics.median(plain_s), statistics.median(drafted_s)
    verify = drafted / drafted_steps / (plain / plain_steps)
    return {
        "batch": batch,
        "acceptance": acceptance,
        "same": is_same,
        "plain_step_ms": round(plain / plain_steps * 1000, 3),
        "verify_step_ms": round(drafted / drafted_steps * 1000, 3),
        "verify": round(verify, 3),
        "gain": round(plain / drafted, 3),
        "goal": round(0.9 * tokens_per_round(acceptance, options.drafts) / verify, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--acceptance", nargs="+", type=float, default=[0.6, 0.8])
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records = []
    with LLM(options.model, max_context=2048, max_sequences=max(options.batch)) as llm:
        for batch in options.batch:
            for acceptance in options.acceptance:
                records.append(measure(llm, batch, acceptance, options))
                print(json.dumps(records[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": ""}, "records": records}, indent=1))


if __name__ == "__main__":
    main()
