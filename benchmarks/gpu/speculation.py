"""Speculation on a GPU with made-up weights and drafts that come true with a given chance: measured against the formula.

    python benchmarks/gpu/speculation.py [--model dummy:llama-3.1-8b] [--acceptance 0.6 0.8] [--drafts 4] [--batch 1 8 32]
        [--tokens 400] [--turns 3] [--auto] [--out record.json]

Three things, for each batch:

- `device`: steps of several widths queued one behind another, so that the host is hidden; ratios to a plain step.
- `agree`: drafts that are the plain answers, judged as ever. Products of other sizes are rounded otherwise, and made-up weights
  leave many tokens as likely as each other; `agree` is the share of sequences whose tokens are all the same, `until` where the
  others part, as a median.
- by turns in one process: plain, then with drafts that a made-up judge accepts with the given chance, whatever was drawn.
  `verify` is a step with drafts over a plain one, host included, `gain` tokens a second over plain ones, `formula`
  (1 - a^(k+1)) / (1 - a) over `verify`, and `share` what of the formula was reached.

`--auto` measures something else: what `--speculate auto` costs texts that repeat nothing (of made-up weights, greedy and drawn
at temperature 1), by turns with plain decoding, new prompts each turn.
"""

import argparse
import json
import random
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu.widths import Rows
from penstock import LLM, SamplingParams
from penstock.runtime.core.batch import Chunk, Logprob
from penstock.runtime.core.request import Request
from penstock.runtime.draft.drafter import NO_GUESS, Guess, View
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.draft.rule import tokens_per_round
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.execution.eager import launched
from penstock.runtime.execution.eager.launched import ChunkOutcome

Answers = dict[tuple[int, ...], list[int]]


class ToldDrafter:
    """Knows the answers by their prompts; past their ends it says the last token again."""

    name = "told"

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

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
        tokens = answer[place : place + most]
        return Guess((*tokens, *[answer[-1]] * (most - len(tokens))), self.name)


def judge(chance: float) -> Callable[..., ChunkOutcome]:
    """In place of comparing drafts with what was drawn."""
    source = random.Random(1)

    def accepted(chunk: Chunk, drawn: list[int], logprobs: list[Logprob], rest: tuple[Logprob, ...]) -> ChunkOutcome:
        drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        count = 0
        while count < len(drafts) and source.random() < chance:
            count += 1
        return ChunkOutcome((*drafts[:count], *drawn[count : count + 1]))

    return accepted


def run(
    llm: LLM, prompts: list[tuple[int, ...]], num_tokens: int, temperature: float = 0.0, seed: int = 0
) -> tuple[Answers, float, int, int]:
    """Answers by prompt; seconds, steps and tokens from when all have begun to when the first ends."""
    engine = llm.engine
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=seed)
    owners = dict(enumerate(prompts))
    for number, prompt in owners.items():
        engine.submit(Request(request_id=number, prompt=prompt, params=params, salt=str(time.monotonic_ns())))
    answers: Answers = {prompt: [] for prompt in prompts}
    begin = end = (0.0, 0, 0)
    while engine.has_work:
        ended = False
        for delta in engine.step():
            answers[owners[delta.request_id]].extend(delta.token_ids)
            ended |= delta.finish is not None
        count = sum(map(len, answers.values()))
        if ended and not end[0]:
            end = time.perf_counter(), engine.num_steps, count
        if not begin[0] and all(answers.values()):
            begin = time.perf_counter(), engine.num_steps, count
    return answers, end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]


def speculate(llm: LLM, answers: Answers, num_drafts: int) -> None:
    speculator = Speculator([ToldDrafter(answers)], length=num_drafts)
    llm.engine.proposer.proposals = Proposals(llm.engine.scheduler, speculator)


def on_device(llm: LLM, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    rows = Rows(llm, batch, 256)
    times: dict[int, list[float]] = {width: [] for width in range(1, options.drafts + 2)}
    for turn in range(4):
        for width, each in times.items():
            taken_s = rows.queued_s(width, 20)
            each += [taken_s] if turn else []
    medians = {width: statistics.median(each) for width, each in times.items()}
    ratios = {width: round(median / medians[1], 3) for width, median in medians.items()}
    return {"batch": batch, "device_ms": {w: round(s * 1000, 3) for w, s in medians.items()}, "device": ratios}


def agreement(llm: LLM, prompts: list[tuple[int, ...]], options: argparse.Namespace) -> dict[str, Any]:
    llm.engine.proposer.proposals = None
    answers = run(llm, prompts, options.tokens)[0]
    speculate(llm, answers, options.drafts)
    found = run(llm, prompts, options.tokens)[0]
    parts = [
        next(place for place, pair in enumerate(zip(found[prompt], answers[prompt])) if pair[0] != pair[1])
        for prompt in prompts
        if found[prompt] != answers[prompt]
    ]
    until = statistics.median(parts) if parts else None
    return {"batch": len(prompts), "agree": round(1 - len(parts) / len(prompts), 3), "until": until}


def measure(llm: LLM, prompts: list[tuple[int, ...]], acceptance: float, options: argparse.Namespace) -> dict[str, Any]:
    plain: list[tuple[float, float]] = []
    drafted: list[tuple[float, float]] = []
    """Seconds a step and tokens a second."""
    for turn in range(options.turns + 1):
        llm.engine.proposer.proposals = None
        answers, seconds, steps, tokens = run(llm, prompts, options.tokens)
        plain += [(seconds / steps, tokens / seconds)] if turn else []
        speculate(llm, answers, options.drafts)
        truth, launched.accepted = launched.accepted, judge(acceptance)
        try:
            _, seconds, steps, tokens = run(llm, prompts, options.tokens)
        finally:
            launched.accepted = truth
        drafted += [(seconds / steps, tokens / seconds)] if turn else []
    (plain_s, plain_rate), (verify_s, rate) = (map(statistics.median, zip(*each)) for each in (plain, drafted))
    gain, formula = rate / plain_rate, tokens_per_round(acceptance, options.drafts) / (verify_s / plain_s)
    return {
        "batch": len(prompts),
        "acceptance": acceptance,
        "plain_step_ms": round(plain_s * 1000, 3),
        "verify_step_ms": round(verify_s * 1000, 3),
        "verify": round(verify_s / plain_s, 3),
        "gain": round(gain, 3),
        "formula": round(formula, 3),
        "share": round(gain / formula, 3),
    }


def made_up(llm: LLM, batch: int, seed: int) -> list[tuple[int, ...]]:
    choose = random.Random(seed)
    return [tuple(choose.randrange(100, llm.spec.vocab_size - 100) for _ in range(128)) for _ in range(batch)]


def automatic(llm: LLM, batch: int, temperature: float, options: argparse.Namespace) -> dict[str, Any]:
    """`llm` was opened with speculation: its own proposals, and none, in turns."""
    own = llm.engine.proposer.proposals
    rates: dict[bool, list[float]] = {False: [], True: []}
    widths: list[float] = []
    for turn in range(options.turns + 1):
        prompts = made_up(llm, batch, 1000 * batch + turn)
        for drafts in (False, True):
            llm.engine.proposer.proposals = own if drafts else None
            _, seconds, steps, tokens = run(llm, prompts, options.tokens, temperature, turn)
            rates[drafts] += [tokens / seconds] if turn else []
            widths += [tokens / steps / batch] if turn and drafts else []
    llm.engine.proposer.proposals = own
    ratios = [drafted / plain for plain, drafted in zip(rates[False], rates[True])]
    return {
        "batch": batch,
        "temperature": temperature,
        "plain_tokens_per_s": round(statistics.median(rates[False])),
        "tokens_per_step": round(statistics.median(widths), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--acceptance", nargs="+", type=float, default=[0.6, 0.8])
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    records: list[dict[str, Any]] = []

    def record(part: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        begin_s = time.perf_counter()
        try:
            records.append(part(*arguments, options))
        except Exception:
            traceback.print_exc(limit=-6)
            return
        print(json.dumps(records[-1] | {"took_s": round(time.perf_counter() - begin_s, 1)}), flush=True)

    speculate = "auto" if options.auto else None
    with LLM(options.model, max_context=2048, max_sequences=max(options.batch), speculate=speculate) as llm:
        for batch in options.batch:
            prompts = made_up(llm, batch, batch)
            if options.auto:
                for temperature in (0.0, 1.0):
                    record(automatic, llm, batch, temperature)
                continue
            record(agreement, llm, prompts)
            record(on_device, llm, batch)
            for acceptance in options.acceptance:
                record(measure, llm, prompts, acceptance)
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": ""}, "records": records}, indent=1))


if __name__ == "__main__":
    main()
