"""What a run amounts to: latencies, rates, lengths asked and got, the cache's share, and how late the client was.

Computed from the answers alone, so that it can be computed again. Judging the figures is `flags`' part.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from penstock.metrics.histogram import Histogram
from penstock.metrics.summary import Slo, Summary, quantile, summarize
from penstock.tools.bench.client.answer import Answer
from penstock.tools.bench.client.counters import Counters
from penstock.tools.bench.client.target import TargetServer
from penstock.tools.bench.load import MeasuredLoad, RunEnding
from penstock.tools.bench.plan import TrafficPlan

MOST_FAULTS = 10

FORMULAS = {
    "clock": "from the scheduled arrival, not from when the request was sent; successes only",
    "TTFT": "first piece with text, reasoning included, less the scheduled arrival",
    "E2E": "last piece with text less the scheduled arrival",
    "TPOT": "(E2E - TTFT) / (tokens - 1), a request at a time",
    "ITL": "every gap between pieces; a piece may hold several tokens",
    "tokens": "as the server counts them (usage)",
    "rates": "over the time from the first arrival to the last end",
    "goodput": "successes that met every target of the SLO, a second",
}


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Tokens asked for beside tokens got, of successes."""

    num_checked: int
    """Answers whose usage was reported."""
    prompt_asked: float
    prompt_mean: float
    prompt_error_max: int
    """The furthest any prompt was off, in tokens."""
    answer_asked: float
    answer_mean: float
    num_short: int
    """Answers with fewer tokens than asked."""


@dataclass(frozen=True, slots=True)
class Cache:
    hit_fraction: float | None
    """Of prompt tokens; None where the server does not report it."""
    repeated_fraction: float
    """Of prompt tokens: what the workload itself repeats, and what the server adds to every prompt."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(RunEnding):
    rate: float | None
    """Asked requests a second; None where users ask when answered."""
    num_requests: int
    num_failed: int
    num_abandoned: int
    """Given up by us when the run was stopped."""
    failures: dict[str, int]
    """What went wrong, and how often."""
    summary: Summary
    lengths: LengthFigures
    cache: Cache
    pieces_per_answer: float
    tokens_per_piece: float
    num_reasoning_pieces: int
    send_late_p99_s: float
    server: Counters
    has_usage: bool

    @property
    def num_left(self) -> int:
        """Requests of the load that were not answered, one way or the other."""
        return self.num_unsent + self.num_abandoned

    @property
    def failed_fraction(self) -> float:
        return self.num_failed / self.num_requests if self.num_requests else 0.0


def figures_of(
    measured: MeasuredLoad,
    plan: TrafficPlan,
    target: TargetServer,
    slo: Slo,
    server: Counters,
    rate: float | None = None,
) -> Figures:
    ended = [answer for answer in measured.answers if answer.end_s is not None]
    successes = [answer for answer in ended if answer.is_success]
    failures = Counter(answer.error for answer in ended if answer.error)
    num_pieces = sum(len(answer.piece_times) for answer in successes)
    num_tokens = sum(answer.num_tokens for answer in successes)
    late = sorted(
        max(answer.sent_s - answer.scheduled_s, 0.0) for answer in measured.answers if answer.sent_s is not None
    )
    return Figures(
        rate=rate,
        num_requests=len(measured.answers),
        num_failed=sum(failures.values()),
        num_abandoned=len(measured.answers) - len(ended),
        failures=dict(failures.most_common(MOST_FAULTS)),
        summary=summarize([answer.timeline() for answer in ended], measured.duration_s, slo, _gaps(successes)),
        lengths=_lengths(successes),
        cache=_cache(measured.answers, plan, target, server),
        pieces_per_answer=num_pieces / len(successes) if successes else 0.0,
        tokens_per_piece=num_tokens / num_pieces if num_pieces else 0.0,
        num_reasoning_pieces=sum(answer.num_reasoning_pieces for answer in successes),
        send_late_p99_s=quantile(late, 0.99) if late else 0.0,
        server=server,
        has_usage=any(answer.usage is not None for answer in successes),
        **{one.name: getattr(measured, one.name) for one in fields(RunEnding)},
    )


def _gaps(answers: Sequence[Answer]) -> Histogram:
    gaps = Histogram()
    for answer in answers:
        gaps.add_gaps(answer.piece_times, 1)
    return gaps


def _lengths(answers: Sequence[Answer]) -> LengthFigures:
    """Later turns are left out of the prompts: they hold answers whose length only the server knows."""
    counted = [answer for answer in answers if answer.num_prompt is not None]
    first = [answer for answer in counted if answer.turn == 0]
    errors = [abs((answer.num_prompt or 0) - answer.num_prompt_asked) for answer in first]
    return LengthFigures(
        num_checked=len(counted),
        prompt_asked=_mean([answer.num_prompt_asked for answer in first]),
        prompt_mean=_mean([answer.num_prompt or 0 for answer in first]),
        prompt_error_max=max(errors, default=0),
        answer_asked=_mean([answer.num_answer_asked for answer in answers]),
        answer_mean=_mean([answer.num_tokens for answer in answers]),
        num_short=sum(answer.num_tokens < answer.num_answer_asked for answer in answers),
    )


def _cache(sent: Sequence[Answer], plan: TrafficPlan, target: TargetServer, server: Counters) -> Cache:
    """What was refused met no cache: neither the hits nor what could be hit are of it."""
    taken = plan.part(Counter(answer.ask for answer in sent if not answer.is_refused))
    num_taken = taken.num_prompt_tokens()
    repeated = taken.num_repeated() + target.vocabulary.overhead * taken.num_requests
    share = min(repeated / num_taken, 1.0) if num_taken else 0.0
    answers = [answer for answer in sent if answer.is_success]
    if server.cache_hits is not None and server.cache_queries:
        return Cache(server.cache_hits / server.cache_queries, share, "the server's metrics")
    reported = [answer.num_cached for answer in answers if answer.num_cached is not None]
    num_prompt = sum(answer.num_prompt or 0 for answer in answers)
    if reported and num_prompt:
        return Cache(sum(reported) / num_prompt, share, "usage")
    return Cache(None, share, "not told")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def row_of(answer: Answer) -> dict[str, object]:
    """One request, for a table of them."""
    timeline = answer.timeline()
    return {
        "number": answer.number,
        "scheduled_s": answer.scheduled_s,
        "sent_s": answer.sent_s,
        "end_s": answer.end_s,
        "ttft_s": timeline.ttft_s,
        "tpot_s": timeline.tpot_s,
        "e2e_s": timeline.e2e_s,
        "prompt_asked": answer.num_prompt_asked,
        "prompt": answer.num_prompt,
        "cached": answer.num_cached,
        "answer_asked": answer.num_answer_asked,
        "answer": answer.num_tokens,
        "pieces": len(answer.piece_times),
        "turn": answer.turn,
        "status": answer.status,
        "finish_reason": answer.finish_reason,
        "error": answer.error or None,
    }
