"""One request as spans over time: received, tokenized, queued, prompt, tokens, stalls and who caused them, written."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from penstock.runtime.engine.client import StepView
from penstock.service.server.ui.ledger import RequestRecord

STALL_FACTOR = 3.0
"""A gap this many times as long as the usual one is a stall."""
MAX_STALLS = 40
OF_RECORD = ("request_id", "call_id", "num_prompt", "num_cached", "num_tokens", "miss", "differs", "outcome")


def waterfall(record: RequestRecord, steps: Sequence[StepView], now: float) -> dict[str, Any]:
    """Milliseconds from when the first byte was read."""
    zero_s = record.begin_s
    end_s = record.end_s or now
    marks = [
        ("receive", record.begin_s, record.read_s),
        ("tokenize", record.read_s, record.arrival_s),
        ("queue", record.arrival_s, record.admitted_s or record.first_s or end_s),
        ("prefill", record.admitted_s, record.first_s or end_s),
        ("decode", record.first_s, record.last_s),
        ("flush", record.last_s, record.end_s),
    ]
    spans = [
        {"name": name, "start_ms": _ms(start, zero_s), "end_ms": _ms(max(stop, start), zero_s)}
        for name, start, stop in marks
        if start is not None and stop is not None
    ]
    return {
        **{name: getattr(record, name) for name in OF_RECORD},
        "is_over": record.end_s is not None,
        "total_ms": _ms(end_s, zero_s),
        "spans": spans,
        "chunks": _chunks(record, steps, zero_s),
        "tokens_ms": [_ms(time, zero_s) for time in record.times],
        "stalls": _stalls(record, steps, zero_s),
    }


def _chunks(record: RequestRecord, steps: Iterable[StepView], zero_s: float) -> list[dict[str, float]]:
    """The steps that computed its prompt."""
    return [
        {"start_ms": _ms(step.end_s - step.duration_s, zero_s), "end_ms": _ms(step.end_s, zero_s)}
        for step in steps
        if record.request_id in step.prompts
    ]


def _stalls(record: RequestRecord, steps: Sequence[StepView], zero_s: float) -> list[dict[str, Any]]:
    gaps = [later - earlier for earlier, later in zip(record.times, record.times[1:])]
    if len(gaps) < 4:
        return []
    usual_s = median(gaps)
    found: list[dict[str, Any]] = []
    for start_s, gap_s in zip(record.times, gaps):
        if gap_s > STALL_FACTOR * usual_s and len(found) < MAX_STALLS:
            found.append(
                {"start_ms": _ms(start_s, zero_s), "gap_ms": 1e3 * gap_s} | _cause(record, steps, start_s, gap_s)
            )
    return found


def _cause(record: RequestRecord, steps: Iterable[StepView], start_s: float, gap_s: float) -> dict[str, Any]:
    """Who was computed in the longest step of the gap."""
    inside = [step for step in steps if start_s < step.end_s <= start_s + gap_s + 1e-3]
    longest = max(inside, key=lambda step: step.duration_s, default=None)
    if longest is None or longest.duration_s < 0.3 * gap_s:
        return {"cause": "the step was over sooner: the host, the network or the reader was slow", "by": []}
    others = [number for number in longest.prompts if number != record.request_id]
    if others:
        return {"cause": f"{longest.num_prompt_tokens} prompt tokens in one step", "by": others}
    return {"cause": f"a long step of {longest.num_decoding} sequences", "by": []}


def _ms(time_s: float, zero_s: float) -> float:
    return round(1e3 * (time_s - zero_s), 3)
