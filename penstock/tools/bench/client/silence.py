"""When a server that was being asked gave no sign of life: the longest such time of a run, and whether it lasted to the end.

A sign of life is a piece of an answer, or any response that was read to its end, be it a refusal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.tools.bench.client.answer import Answer

LEAST_S = 5.0
"""Shorter ones are visible as gaps between pieces."""
LEAST_LOST = 3
"""Requests that came to nothing, one after another, before a server is called gone."""
GONE_S = 20.0
"""After so long with several requests under way that we gave up, a server that said nothing to the end is called gone, too."""


@dataclass(frozen=True, slots=True)
class Silence:
    from_s: float
    to_s: float
    num_open: int
    """Requests under way, or sent in vain, meanwhile."""
    is_gone: bool = False
    """Nothing came after it."""
    is_deaf: bool = False
    """Nor were plain questions answered."""

    @property
    def duration_s(self) -> float:
        return self.to_s - self.from_s


def last_sign_s(answers: Sequence[Answer]) -> float:
    return max((time_s for answer in answers for time_s in _signs(answer, only_last=True)), default=0.0)


def silence_of(answers: Sequence[Answer], end_s: float, *, is_deaf: bool = False) -> Silence | None:
    """The one at the end, if the server was gone; else the longest in which answers stood still in their middle."""
    from_s = last_sign_s(answers)
    waiting = [answer for answer in answers if answer.is_lost or answer.end_s is None]
    in_vain = [answer for answer in waiting if answer.end_s is None or answer.end_s >= from_s]
    # What was sent before may have met a server that breaks answers; what never was, met nobody.
    num_lost = sum(answer.is_lost and (answer.sent_s is None or answer.sent_s >= from_s) for answer in in_vain)
    allowed_s = LEAST_S if any(answer.is_lost for answer in in_vain) else GONE_S
    if is_deaf or num_lost >= LEAST_LOST or (len(in_vain) >= LEAST_LOST and end_s - from_s >= allowed_s):
        return Silence(from_s, end_s, len(in_vain), is_gone=True, is_deaf=is_deaf)
    signs = sorted(time_s for answer in answers for time_s in _signs(answer))
    found = [
        Silence(before_s, after_s, num_open)
        for before_s, after_s in pairwise(signs)
        if after_s - before_s >= LEAST_S
        and (num_open := sum(_is_in_middle(answer, before_s, after_s) for answer in answers))
    ]
    return max(found, key=lambda silence: silence.duration_s, default=None)


def _signs(answer: Answer, *, only_last: bool = False) -> Sequence[float]:
    pieces = answer.piece_times[-1:] if only_last else answer.piece_times
    return [*pieces, answer.end_s] if answer.status and answer.end_s is not None else pieces


def _is_in_middle(answer: Answer, before_s: float, after_s: float) -> bool:
    has_begun = bool(answer.piece_times) and answer.piece_times[0] <= before_s
    return has_begun and (answer.end_s is None or answer.end_s >= after_s)
