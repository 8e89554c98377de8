"""The most a candidate could carry if requests came evenly and nothing ever waited: an upper bound, found without simulating.

In a steady state B sequences generate at once. While each draws a token, B / answer length requests end and as many begin, so a
step computes B tokens of generation and B x prompt / answer tokens of prompts, and

    rate = B / (answer length x seconds of that step).

More sequences carry more, until their KV does not fit, a step takes longer than the SLO allows, or its tokens pass the budget.
"""

from bisect import bisect_left
from dataclasses import dataclass

from penstock.metrics.summary import Slo
from penstock.runtime.core.batch import Batch
from penstock.tools.cost.cost import decode_chunks, plain_chunk
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Sizes


@dataclass(frozen=True, slots=True)
class Steady:
    """Of one copy of the model."""

    rate: float
    num_sequences: int
    step_s: float


def steady_batch(num_sequences: int, sizes: Sizes, cached_prompt: float = 0.0) -> Batch:
    """Generation in the middle of answers, and the share of prompts that comes with it, as one chunk of it."""
    middle = max(1, round(sizes.mean_held))
    own = max(1.0, sizes.mean_prompt - cached_prompt)
    chunks = decode_chunks(num_sequences, middle)
    num_prompt = round(num_sequences * own / sizes.mean_answer)
    for start in range(0, num_prompt, max(1, round(own))):
        chunks.append(plain_chunk(len(chunks), round(cached_prompt), min(round(own), num_prompt - start) or 1))
    return Batch(0, tuple(chunks))


def bound(candidate: Candidate, sizes: Sizes, slo: Slo, cached_prompt: float = 0.0) -> Steady:
    """The highest rate of one copy; 0 if even a single sequence is too slow or does not fit."""
    most = min(candidate.max_sequences, candidate.sizing.num_sequences(sizes.mean_held))
    if most and _num_tokens(1, sizes, cached_prompt) > candidate.max_batch_tokens:
        return _prompts_alone(candidate, sizes, cached_prompt)
    best = Steady(0.0, 0, 0.0)
    low, high = 0, most
    while low < high:
        count = (low + high + 1) // 2
        found = _at(candidate, sizes, count, cached_prompt)
        is_quick = slo.tpot_s is None or found.step_s <= slo.tpot_s
        if is_quick and _num_tokens(count, sizes, cached_prompt) <= candidate.max_batch_tokens:
            low, best = count, max(best, found, key=lambda steady: steady.rate)
        else:
            high = count - 1
    return best


def num_inside(candidate: Candidate, sizes: Sizes, rate: float, cached_prompt: float = 0.0) -> int:
    """Sequences that generate at once when one copy carries this rate; at most as many as there is room for."""
    most = max(1, min(candidate.max_sequences, candidate.sizing.num_sequences(sizes.mean_held)))
    fewer = range(1, most)
    return 1 + bisect_left(fewer, rate, key=lambda count: _at(candidate, sizes, count, cached_prompt).rate)


def _prompts_alone(candidate: Candidate, sizes: Sizes, cached_prompt: float) -> Steady:
    """Where a prompt takes many times as many tokens as its answer, full steps of prompts are all there is time for."""
    budget = candidate.max_batch_tokens
    start = round(cached_prompt + max(0.0, sizes.mean_prompt - cached_prompt - budget) / 2)
    step_s = candidate.step_cost.step_s(Batch(0, (plain_chunk(0, start, budget),)))
    return Steady(budget / (max(1.0, sizes.mean_prompt - cached_prompt) * step_s), 1, step_s)


def _num_tokens(count: int, sizes: Sizes, cached_prompt: float) -> float:
    return count * (1.0 + max(0.0, sizes.mean_prompt - cached_prompt) / sizes.mean_answer)


def _at(candidate: Candidate, sizes: Sizes, count: int, cached_prompt: float) -> Steady:
    step_s = candidate.step_cost.step_s(steady_batch(count, sizes, cached_prompt))
    return Steady(count / (sizes.mean_answer * step_s), count, step_s)
