"""What a run amounts to: percentiles, throughput, goodput. One definition for engine, bench and simulator."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.metrics.histogram import Histogram
from penstock.metrics.timeline import Outcome, Timeline

_SHARES = (0.5, 0.9, 0.95, 0.99)
_TIMES = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as good. A target that is not set asks nothing."""

    ttft_s: float | None = setting(None)
    """Longest time to the first token, in seconds, that counts as good"""
    tpot_s: float | None = setting(None)
    """Longest mean time between tokens, in seconds, that counts as good"""
    e2e_s: float | None = setting(None)
    """Longest time to the last token, in seconds, that counts as good"""

    def __post_init__(self) -> None:
        for name in _TIMES:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise ConfigError(f"the SLO's {name} is {value}; choose a number of seconds above 0")

    def is_met(self, timeline: Timeline) -> bool:
        """The request succeeded and was nowhere late. A time it does not have (one token has no TPOT) is not late."""
        if timeline.outcome is None or not timeline.outcome.is_success:
            return False
        pairs = [(getattr(timeline, name), getattr(self, name)) for name in _TIMES]
        return all(taken is None or allowed is None or taken <= allowed for taken, allowed in pairs)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations in seconds; all zero when there were none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are of successes alone; failures are counted apart. Rates are over `duration_s`."""

    duration_s: float
    outcomes: dict[str, int]
    """Requests by how they ended; those still under way are in none."""
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    """Every single gap between tokens, of successes and failures alike."""
    e2e: Percentiles
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache gave."""
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    good_requests_per_s: float
    """Goodput: successes that met the SLO."""
    good_tokens_per_s: float
    good_fraction: float
    """Of all requests that ended."""

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())

    @property
    def num_successes(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if Outcome(outcome).is_success)


def summarize(
    timelines: Collection[Timeline], duration_s: float, slo: Slo | None = None, gaps: Histogram | None = None
) -> Summary:
    slo = slo or Slo()
    ended = [timeline for timeline in timelines if timeline.is_over]
    successes = [timeline for timeline in ended if timeline.outcome is not None and timeline.outcome.is_success]
    good = [timeline for timeline in successes if slo.is_met(timeline)]
    outcomes = dict.fromkeys((outcome.value for outcome in Outcome), 0)
    for timeline in ended:
        if timeline.outcome is not None:
            outcomes[timeline.outcome.value] += 1
    per_s = 1.0 / duration_s if duration_s > 0.0 else 0.0
    num_output_tokens = sum(timeline.num_tokens for timeline in ended)
    return Summary(
        duration_s=duration_s,
        outcomes=outcomes,
        ttft=percentiles([time for one in successes if (time := one.ttft_s) is not None]),
        tpot=percentiles([time for one in successes if (time := one.tpot_s) is not None]),
        itl=_from_histogram(gaps) if gaps else Percentiles(),
        e2e=percentiles([time for one in successes if (time := one.e2e_s) is not None]),
        num_prompt_tokens=sum(timeline.num_prompt for timeline in ended),
        num_cached_tokens=sum(timeline.num_cached for timeline in ended),
        num_output_tokens=num_output_tokens,
        requests_per_s=len(successes) * per_s,
        output_tokens_per_s=num_output_tokens * per_s,
        good_requests_per_s=len(good) * per_s,
        good_tokens_per_s=sum(timeline.num_tokens for timeline in good) * per_s,
        good_fraction=len(good) / len(ended) if ended else 0.0,
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles()
    ordered = sorted(values)
    p50, p90, p95, p99 = (quantile(ordered, share) for share in _SHARES)
    return Percentiles(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of sorted values, in proportion."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _from_histogram(histogram: Histogram) -> Percentiles:
    p50, p90, p95, p99 = (histogram.quantile(share) for share in _SHARES)
    return Percentiles(histogram.count, histogram.mean_s, p50, p90, p95, p99, histogram.max_s)
