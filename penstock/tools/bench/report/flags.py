"""What must be known before a figure is believed: doubts by their weight, each with its reason in words.

`invalid`: the figures are not the server's. `warning`: they are, but not of what was asked. `note`: worth knowing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.amounts import counted
from penstock.tools.bench.client.target import MODELS
from penstock.tools.bench.report.figures import Figures

Level = Literal["invalid", "warning", "note"]
Named = Iterator[tuple[str, str]]
"""Doubts of one level: name and text."""

SHOUTED_FAILURES = 0.01
MOST_FAILURES = 0.5
WARM_FRACTION = 0.05
"""Prompt tokens that a cache gave beyond what the workload repeats."""
PROMPT_ERROR = 0.02
SHORT_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class Doubt:
    name: str
    level: Level
    text: str


def worst_first(doubts: Iterable[Doubt]) -> list[Doubt]:
    return sorted(doubts, key=lambda doubt: get_args(Level).index(doubt.level))


def flags_of(figures: Figures, *, is_closed: bool = False) -> list[Doubt]:
    """All that is doubtful about a run, the worst first."""
    found = [Doubt(name, level, text) for level, doubts in DOUBTS.items() for name, text in doubts(figures)]
    if is_closed:
        text = "closed loop: users wait for their answers before they ask again, so a slow server is asked less"
        found.append(Doubt("closed-loop", "note", text))
    return found


def _invalid(figures: Figures) -> Named:
    summary, silence = figures.summary, figures.silence
    if silence is not None and silence.is_gone:
        why = f", mostly: {next(iter(figures.failures))}" if figures.failures else ""
        deaf = f"; it left {MODELS} unanswered, too" if silence.is_deaf else ""
        yield (
            "server-gone",
            f"the server was gone: nothing came from it after {silence.from_s:,.1f} s of the run, and "
            f"{counted(silence.num_open, 'request')} came to nothing{why}{deaf}",
        )
    if not summary.num_successes:
        yield "no-success", "no request succeeded"
    elif fault := figures.health.fault(summary.ttft.p50, figures.send_late_p99_s):
        remedy = "use fewer streams, a faster or a second client"
        yield "client-bound", f"client-bound: this client did not keep up ({fault}); {remedy}"
    if figures.failed_fraction >= MOST_FAILURES and summary.num_successes:
        rest = "those that did not say nothing of the others"
        yield "mostly-failed", f"most requests failed: {_reported_failures(figures)}; {rest}"


def _warnings(figures: Figures) -> Named:
    silence, num_successes = figures.silence, figures.summary.num_successes
    if figures.is_interrupted:
        num_ended = figures.num_requests - figures.num_abandoned
        yield (
            "interrupted",
            f"partial: interrupted after {num_ended:,} of {figures.num_requests + figures.num_unsent:,} requests; answers "
            "under way were given up, which favours short ones",
        )
    if silence is not None and not silence.is_gone:
        yield (
            "silent",
            f"the server sent nothing for {silence.duration_s:,.1f} s, from {silence.from_s:,.1f} s of the run on, in the "
            f"middle of {counted(silence.num_open, 'answer')}: it hung, or was held up",
        )
    if figures.num_failed and (SHOUTED_FAILURES <= figures.failed_fraction < MOST_FAILURES or not num_successes):
        others = "; latencies are of the others" if num_successes else ""
        yield "failures", f"{_reported_failures(figures)}{others}"
    if figures.is_saturated:
        stopped = f"; stopped with {figures.num_left:,} requests unsent or unanswered" if figures.num_left else ""
        yield (
            "over-saturated",
            "over-saturated: requests came faster than they were answered and the queue grew without end, so latencies "
            f"only tell how long the run was{stopped}; lower --rate, or use --find-knee",
        )
    yield from _unlike_asked(figures)
    others_ended = (figures.server.requests or 0.0) - figures.num_requests
    if others_ended > max(2.0, 0.02 * figures.num_requests):
        shared = "the figures are of a shared machine"
        yield "not-alone", f"the server ended {others_ended:,.0f} requests of others meanwhile: {shared}"


def _unlike_asked(figures: Figures) -> Named:
    """Prompts and answers were other than the load says, or nobody can tell."""
    cache, lengths, num_successes = figures.cache, figures.lengths, figures.summary.num_successes
    if cache.hit_fraction is not None and cache.hit_fraction > cache.repeated_fraction + WARM_FRACTION:
        yield (
            "warm-cache",
            f"warm cache: {100 * cache.hit_fraction:.0f} % of prompt tokens came from the server's prefix cache, but this "
            f"workload repeats only {100 * cache.repeated_fraction:.0f} %; the server has seen these prompts before",
        )
    off = lengths.prompt_mean - lengths.prompt_asked
    if lengths.num_checked and abs(off) > max(PROMPT_ERROR * lengths.prompt_asked, 1.0):
        asked = (
            f"prompts were {lengths.prompt_mean:,.1f} tokens on the average, not {lengths.prompt_asked:,.1f} as asked"
        )
        why = ": none is shorter than the chat template; ask for longer --prompts, or use endpoint=completions"
        yield "prompt-lengths", asked + (why if off >= 0.0 else "")
    if num_successes and lengths.num_short > SHORT_FRACTION * num_successes:
        yield (
            "short-answers",
            f"{lengths.num_short:,} of {num_successes:,} answers were shorter than asked ({lengths.answer_mean:,.1f} tokens "
            f"on the average, not {lengths.answer_asked:,.1f}): the server does not heed ignore_eos",
        )
    if num_successes and not figures.has_usage:
        yield "no-usage", "the server reports no usage: tokens are pieces of the stream, lengths are unverified"


def _notes(figures: Figures) -> Named:
    num_successes = figures.summary.num_successes
    if figures.is_hopeless:
        rest = f"{figures.num_left:,} requests unsent or unanswered"
        yield "hopeless", f"ended early: the targets were out of reach with {rest}"
    if figures.num_failed and figures.failed_fraction < SHOUTED_FAILURES:
        failed = f"{figures.num_failed:,} of {figures.num_requests:,} requests failed"
        yield "few-failures", f"{failed}: {next(iter(figures.failures))}"
    if figures.tokens_per_piece > 1.5:
        longer = "gaps between pieces (ITL) are longer than those between tokens"
        yield "several-tokens-a-piece", f"{figures.tokens_per_piece:.1f} tokens a piece: {longer}"
    if num_successes == 1:
        yield "few-requests", "all latencies are of a single request"
    elif 1 < num_successes < 100:
        yield "few-requests", f"p99 of {num_successes} requests is little more than the slowest of them"


def _reported_failures(figures: Figures) -> str:
    commonest = next(iter(figures.failures))
    return (
        f"{figures.num_failed:,} of {figures.num_requests:,} requests FAILED ({100 * figures.failed_fraction:.1f} %), "
        f"mostly: {commonest}"
    )


DOUBTS: dict[Level, Callable[[Figures], Named]] = {"invalid": _invalid, "warning": _warnings, "note": _notes}
