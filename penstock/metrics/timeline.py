"""Times of one request, from the deltas everyone sees; engine, bench and simulator fill the same value.

    arrival          first token                         last token
       |----- TTFT ------|--- gap ---|--- gap ---| ... ------|
       |------------------------ E2E ------------------------|

TPOT = (E2E - TTFT) / (tokens - 1). A request of several choices counts tokens a choice. Times are given; no clock is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum

from penstock.metrics.histogram import Histogram
from penstock.runtime.core.batch import Delta, Fault, Finish


class Outcome(StrEnum):
    """How a request ended, from the best to the worst; a request has exactly one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    REFUSED = "refused"

    @property
    def is_success(self) -> bool:
        return self in (Outcome.STOP, Outcome.LENGTH)


@dataclass(slots=True, eq=False)
class Timeline:
    """One request. Its size does not grow with its tokens unless every token's time is asked for."""

    arrival_s: float
    num_prompt: int
    num_choices: int = 1
    keep_times: InitVar[bool] = field(default=False, kw_only=True)
    group: str = field(default="", kw_only=True)
    """The groups it is counted in: a tenant, a priority."""
    num_unended: int = field(init=False)
    num_tokens: int = 0
    num_cached: int = 0
    """Prompt tokens of the first choice that the prefix cache gave."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    """When it ended, with or without tokens."""
    outcome: Outcome | None = None
    token_times: list[float] | None = None

    def __post_init__(self, keep_times: bool) -> None:
        self.num_unended = self.num_choices
        self.token_times = [] if keep_times else None

    def observe(self, delta: Delta, now: float) -> float | None:
        """Take in a delta; returns the gap since the tokens before it, if there were any."""
        gap = None
        count = len(delta.token_ids)
        if count:
            if self.last_token_s is None:
                self.first_token_s = now
            else:
                gap = now - self.last_token_s
            self.last_token_s = now
            self.num_tokens += count
            if self.token_times is not None:
                self.token_times.extend([now] * count)
        if delta.prefix is not None and delta.choice == 0:
            self.num_cached = delta.prefix.num_reused
        if delta.finish is not None:
            self._end(outcome_of(delta.finish), now)
        return gap

    def observe_run(self, delta: Delta, times: Sequence[float]) -> float | None:
        """Take in a delta of one token at each of these times; returns the gap before the first."""
        gap = self.observe(delta, times[0])
        self.last_token_s = times[-1]
        if self.token_times is not None:
            self.token_times[-len(times) :] = times
        if self.end_s is not None:
            self.end_s = times[-1]
        return gap

    def refuse(self, now: float) -> None:
        """The request was not accepted."""
        self.num_unended = 1
        self._end(Outcome.REFUSED, now)

    def _end(self, outcome: Outcome, now: float) -> None:
        """A choice ended. The request ends with the last of them, as badly as the worst."""
        if self.outcome is None or _SEVERITY[outcome] > _SEVERITY[self.outcome]:
            self.outcome = outcome
        self.num_unended -= 1
        if not self.num_unended:
            self.end_s = now

    @property
    def is_over(self) -> bool:
        return self.num_unended == 0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.last_token_s is None else self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """None below two tokens: there is no gap to average."""
        num_gaps = self.num_tokens / self.num_choices - 1
        if self.first_token_s is None or self.last_token_s is None or num_gaps <= 0:
            return None
        return (self.last_token_s - self.first_token_s) / num_gaps


_SEVERITY = {outcome: number for number, outcome in enumerate(Outcome)}

_OUTCOME_OF_FAULT = {
    Fault.REQUEST: Outcome.REFUSED,
    Fault.CAPACITY: Outcome.REFUSED,
    Fault.DEADLINE: Outcome.DEADLINE,
    Fault.ENGINE: Outcome.ERROR,
}


def outcome_of(finish: Finish) -> Outcome:
    if finish.fault is not None:
        return _OUTCOME_OF_FAULT[finish.fault]
    return Outcome(finish.reason.value)


class Timelines:
    """Timelines of many requests: those under way by id, those that ended in order of ending.

    `gaps` gathers every inter-token gap of all of them.
    """

    def __init__(self, *, keep_times: bool = False) -> None:
        self.gaps = Histogram()
        self.ended: list[Timeline] = []
        self._open: dict[int, Timeline] = {}
        self._keep_times = keep_times

    @property
    def num_open(self) -> int:
        return len(self._open)

    def arrive(
        self, request_id: int, arrival_s: float, num_prompt: int, num_choices: int = 1, group: str = ""
    ) -> Timeline:
        timeline = Timeline(arrival_s, num_prompt, num_choices, keep_times=self._keep_times, group=group)
        self._open[request_id] = timeline
        return timeline

    def refuse(self, request_id: int, now: float) -> None:
        timeline = self._open.pop(request_id)
        timeline.refuse(now)
        self.ended.append(timeline)

    def observe(self, deltas: Iterable[Delta], now: float) -> None:
        """Take in what a step told. Deltas of unknown requests are a fault of the caller and raise KeyError."""
        for delta in deltas:
            timeline = self._open[delta.request_id]
            gap = timeline.observe(delta, now)
            if gap is not None:
                self.gaps.add(gap)
            if delta.finish is not None and timeline.is_over:
                self.ended.append(self._open.pop(delta.request_id))

    def observe_run(self, delta: Delta, times: Sequence[float]) -> None:
        """Take in a delta that holds one token at each of these times. The gaps between them are the caller's to count: who
        knows that many sequences ran alike counts them all at once."""
        timeline = self._open[delta.request_id]
        gap = timeline.observe_run(delta, times)
        if gap is not None:
            self.gaps.add(gap)
        if delta.finish is not None and timeline.is_over:
            self.ended.append(self._open.pop(delta.request_id))
