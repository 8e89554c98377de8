"""What must be known before a figure is believed: a table of doubts, each with its reason in words.

`invalid`: the figures are not the server's. `warning`: they are, but not of what was asked. `note`: worth knowing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.amounts import counted
from penstock.tools.bench.client.target import MODELS
from penstock.tools.bench.report.figures import Figures

Level = Literal["invalid", "warning", "note"]

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
    found = [Doubt(name, level, text) for name, level, check in CHECKS if (text := check(figures))]
    if is_closed:
        text = "closed loop: users wait for their answers before they ask again, so a slow server is asked less"
        found.append(Doubt("closed-loop", "note", text))
    return worst_first(found)


def _gone(figures: Figures) -> str:
    silence = figures.silence
    if silence is None or not silence.is_gone:
        return ""
    why = f", mostly: {next(iter(figures.failures))}" if figures.failures else ""
    deaf = f"; it left {MODELS} unanswered, too" if silence.is_deaf else ""
    return (
        f"the server was gone: nothing came from it after {silence.from_s:,.1f} s of the run, and "
        f"{counted(silence.num_open, 'request')} came to nothing{why}{deaf}"
    )


def _silent(figures: Figures) -> str:
    silence = figures.silence
    if silence is None or silence.is_gone:
        return ""
    return (
        f"the server sent nothing for {silence.duration_s:,.1f} s, from {silence.from_s:,.1f} s of the run on, in the middle "
        f"of {counted(silence.num_open, 'answer')}: it hung, or was held up"
    )


def _client_bound(figures: Figures) -> str:
    if not figures.summary.num_successes:
        return ""
    fault = figures.health.fault(figures.summary.ttft.p50, figures.send_late_p99_s)
    return (
        f"client-bound: this client did not keep up ({fault}); use fewer streams, a faster or a second client"
        if fault
        else ""
    )


def _nothing(figures: Figures) -> str:
    return "" if figures.summary.num_successes else "no request succeeded"


def _mostly_failed(figures: Figures) -> str:
    if figures.failed_fraction < MOST_FAILURES or not figures.summary.num_successes:
        return ""
    return f"most requests failed: {_reported_failures(figures)}; those that did not say nothing of the others"


def _failures(figures: Figures) -> str:
    if not SHOUTED_FAILURES <= figures.failed_fraction < MOST_FAILURES and figures.summary.num_successes:
        return ""
    others = "; latencies are of the others" if figures.summary.num_successes else ""
    return f"{_reported_failures(figures)}{others}" if figures.num_failed else ""


def _reported_failures(figures: Figures) -> str:
    commonest = next(iter(figures.failures))
    return (
        f"{figures.num_failed:,} of {figures.num_requests:,} requests FAILED ({100 * figures.failed_fraction:.1f} %), "
        f"mostly: {commonest}"
    )


def _few_failures(figures: Figures) -> str:
    if not figures.num_failed or figures.failed_fraction >= SHOUTED_FAILURES:
        return ""
    return f"{figures.num_failed:,} of {figures.num_requests:,} requests failed: {next(iter(figures.failures))}"


def _saturated(figures: Figures) -> str:
    if not figures.is_saturated:
        return ""
    rest = figures.num_unsent + figures.num_abandoned
    stopped = f"; stopped with {rest:,} requests unsent or unanswered" if rest else ""
    return (
        "over-saturated: requests came faster than they were answered and the queue grew without end, so latencies "
        f"only tell how long the run was{stopped}; lower --rate, or use --find-knee"
    )


def _interrupted(figures: Figures) -> str:
    if not figures.is_interrupted:
        return ""
    num_ended = figures.num_requests - figures.num_abandoned
    return (
        f"partial: interrupted after {num_ended:,} of {figures.num_requests + figures.num_unsent:,} requests; answers under "
        "way were given up, which favours short ones"
    )


def _hopeless(figures: Figures) -> str:
    if not figures.is_hopeless:
        return ""
    rest = figures.num_unsent + figures.num_abandoned
    return f"ended early: the targets were out of reach with {rest:,} requests unsent or unanswered"


def _warm(figures: Figures) -> str:
    cache = figures.cache
    if cache.hit_fraction is None or cache.hit_fraction <= cache.repeated_fraction + WARM_FRACTION:
        return ""
    return (
        f"warm cache: {100 * cache.hit_fraction:.0f} % of prompt tokens came from the server's prefix cache, but this "
        f"workload repeats only {100 * cache.repeated_fraction:.0f} %; the server has seen these prompts before"
    )


def _prompt_lengths(figures: Figures) -> str:
    lengths = figures.lengths
    off = abs(lengths.prompt_mean - lengths.prompt_asked)
    if not lengths.num_checked or off <= max(PROMPT_ERROR * lengths.prompt_asked, 1.0):
        return ""
    found = f"prompts were {lengths.prompt_mean:,.1f} tokens on the average, not {lengths.prompt_asked:,.1f} as asked"
    if lengths.prompt_mean < lengths.prompt_asked:
        return found
    return f"{found}: none is shorter than the chat template; ask for longer --prompts, or use endpoint=completions"


def _short_answers(figures: Figures) -> str:
    lengths, count = figures.lengths, figures.summary.num_successes
    if not count or lengths.num_short <= SHORT_FRACTION * count:
        return ""
    return (
        f"{lengths.num_short:,} of {count:,} answers were shorter than asked ({lengths.answer_mean:,.1f} tokens on the "
        f"average, not {lengths.answer_asked:,.1f}): the server does not heed ignore_eos"
    )


def _no_usage(figures: Figures) -> str:
    if figures.has_usage or not figures.summary.num_successes:
        return ""
    return "the server reports no usage: tokens are pieces of the stream, lengths are unverified"


def _other_guests(figures: Figures) -> str:
    others = (figures.server.requests or 0.0) - figures.num_requests
    if others <= max(2.0, 0.02 * figures.num_requests):
        return ""
    return f"the server ended {others:,.0f} requests of others meanwhile: the figures are of a shared machine"


def _several_a_piece(figures: Figures) -> str:
    if figures.tokens_per_piece <= 1.5:
        return ""
    return (
        f"{figures.tokens_per_piece:.1f} tokens a piece: gaps between pieces (ITL) are longer than those between tokens"
    )


def _small_batch(figures: Figures) -> str:
    count = figures.summary.num_successes
    if count == 1:
        return "all latencies are of a single request"
    return f"p99 of {count} requests is little more than the slowest of them" if 0 < count < 100 else ""


CHECKS: tuple[tuple[str, Level, Callable[[Figures], str]], ...] = (
    ("server-gone", "invalid", _gone),
    ("no-success", "invalid", _nothing),
    ("client-bound", "invalid", _client_bound),
    ("mostly-failed", "invalid", _mostly_failed),
    ("interrupted", "warning", _interrupted),
    ("silent", "warning", _silent),
    ("failures", "warning", _failures),
    ("over-saturated", "warning", _saturated),
    ("warm-cache", "warning", _warm),
    ("prompt-lengths", "warning", _prompt_lengths),
    ("short-answers", "warning", _short_answers),
    ("no-usage", "warning", _no_usage),
    ("not-alone", "warning", _other_guests),
    ("hopeless", "note", _hopeless),
    ("few-failures", "note", _few_failures),
    ("several-tokens-a-piece", "note", _several_a_piece),
    ("few-requests", "note", _small_batch),
)
