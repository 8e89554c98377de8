"""How much of what it could carry a server is asked for: rho, from the steps it took and the requests it answered.

Busy is not utilised: a step of one sequence keeps a machine as busy as a step of a hundred. Capacity is what steps of full
batches would give, with requests like those of the last minute. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from penstock.runtime.engine.client import StepView
from penstock.service.server.ui.ledger import RequestLedger, RequestRecord

MIN_STEPS = 8


@dataclass(frozen=True, slots=True)
class QueueWindow:
    """The requests of one window: how many came, how long those stayed that ended, how many were inside on average."""

    window_s: float
    arrivals_per_s: float
    mean_time_s: float | None
    mean_inside: float
    ended: list[RequestRecord]


def queue_of(ledger: RequestLedger, start_s: float, now: float) -> QueueWindow:
    """From `start_s`, or from when the ledger's kept requests begin, to now. In a steady state mean_inside is rate x time."""
    if len(ledger.ended) == ledger.ended.maxlen:
        start_s = max(start_s, ledger.ended[0].end_s or start_s)  # of earlier ones some are forgotten
    window_s = max(now - start_s, 1.0)
    ended = [one for one in ledger.ended if (one.end_s or now) >= start_s]
    inside = [*ended, *ledger.open.values()]
    stays = [(one.end_s or now) - one.arrival_s for one in ended]
    area_s = sum(min(one.end_s or now, now) - max(one.arrival_s, start_s) for one in inside)
    num_arrivals = sum(one.arrival_s >= start_s for one in inside)
    mean_time_s = sum(stays) / len(stays) if stays else None
    return QueueWindow(window_s, num_arrivals / window_s, mean_time_s, max(area_s, 0.0) / window_s, ended)


class StepTimes(NamedTuple):
    """A step takes `base_s` and so much more for every sequence that decodes and every token of a prompt."""

    base_s: float
    sequence_s: float
    prompt_token_s: float


class RequestMix(NamedTuple):
    """A usual request."""

    num_computed: float
    """Prompt tokens that no cache has."""
    num_tokens: float
    """Generated."""
    num_context: float
    """Tokens it holds in the KV cache at its end."""


def step_times(steps: Sequence[StepView]) -> StepTimes | None:
    """A line through the median times of decoding steps by size; what steps with prompts take beyond it is the prompts'."""
    by_size: dict[int, list[float]] = {}
    for step in steps:
        if step.num_decoding and not step.num_prompt_tokens:
            by_size.setdefault(step.num_decoding, []).append(step.duration_s)
    if sum(map(len, by_size.values())) < MIN_STEPS:
        return None
    base_s, sequence_s = _line([(size, median(times), len(times)) for size, times in by_size.items()])
    extra = [
        max(step.duration_s - base_s - sequence_s * step.num_decoding, 0.0) / step.num_prompt_tokens
        for step in steps
        if step.num_prompt_tokens
    ]
    return StepTimes(base_s, sequence_s, median(extra) if extra else 0.0)


def _line(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Weighted least squares; never falling, since more work is never less."""
    weight = sum(count for _, _, count in points)
    mean_x = sum(count * x for x, _, count in points) / weight
    mean_y = sum(count * y for _, y, count in points) / weight
    spread = sum(count * (x - mean_x) ** 2 for x, _, count in points)
    slope = sum(count * (x - mean_x) * (y - mean_y) for x, y, count in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), mean_y / max(mean_x, 1.0))
    return mean_y - slope * mean_x, slope


class OperatingPoint(NamedTuple):
    """What so many sequences at once come to."""

    num_sequences: float
    tpot_s: float
    tokens_per_s: float


def full_batch(mix: RequestMix, max_sequences: int, num_kv_tokens: int) -> float:
    """Sequences that can run at once: by the limit, or by what fits the KV cache."""
    fitting = num_kv_tokens / max(mix.num_context, 1.0)
    return max(min(float(max_sequences), fitting), 1.0)


def point_at(size: float, times: StepTimes, mix: RequestMix) -> OperatingPoint:
    """Steady decoding of `size` sequences; the prompts of those that take the place of others lengthen the steps."""
    prompts_s = size / max(mix.num_tokens, 1.0) * mix.num_computed * times.prompt_token_s
    tpot_s = max(times.base_s + times.sequence_s * size + prompts_s, 1e-9)
    return OperatingPoint(size, tpot_s, size / tpot_s)


def capacity_per_s(times: StepTimes, mix: RequestMix, size: float) -> float:
    """Requests a second with full batches of `size`."""
    return point_at(size, times, mix).tokens_per_s / max(mix.num_tokens, 1.0)


def frontier(times: StepTimes, mix: RequestMix, size: float) -> list[OperatingPoint]:
    """Tokens a second against what each user sees, from one sequence to a full batch of `size`.

    Nothing where steps of all sizes cost the same a sequence: they were too few or too uneven to tell what a batch gains.
    """
    if times.base_s <= 0.01 * times.sequence_s:
        return []
    sizes = [2.0**power for power in range(max(math.ceil(math.log2(size)), 0))]
    return [point_at(one, times, mix) for one in (*sizes, size)]
