"""`best_of`: more answers are drawn than are told; the likeliest, by the mean log probability of their tokens, are.

Which they are is known when all have ended: a stream tells them then.
"""

from collections.abc import Sequence
from typing import Any

from penstock.service.server.dialect import AnswerEncoder, Dialect
from penstock.service.server.http.call import Call
from penstock.service.server.http.faults import ApiError
from penstock.service.server.writer import Piece


class BestOf:
    """Stands before the encoder that words the answers kept: `num_kept` of every `num_drawn`."""

    def __init__(self, encoder: AnswerEncoder, num_drawn: int, num_kept: int, *, shows_logprobs: bool) -> None:
        self._encoder = encoder
        self._num_drawn = num_drawn
        self._num_kept = num_kept
        self._shows_logprobs = shows_logprobs
        self._drawn: dict[int, list[Piece]] = {}

    @property
    def dialect(self) -> Dialect:
        return self._encoder.dialect

    def opening(self, call: Call) -> bytes:
        return self._encoder.opening(call)

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        self.keep(pieces)
        return b""

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        return self._encoder.reporting(self._best()) + self._encoder.closing(call, timings)

    def failing(self, error: ApiError) -> bytes:
        return self._encoder.failing(error)

    def keep(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._drawn.setdefault(piece.choice, []).append(piece)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        self._encoder.keep(self._best())
        return self._encoder.whole(call, timings)

    def _best(self) -> list[Piece]:
        """All pieces of the answers kept, numbered as if no others had been drawn."""
        best: list[Piece] = []
        for prompt in range(-(-len(self._drawn) // self._num_drawn)):
            first = prompt * self._num_drawn
            drawn = [self._drawn.get(first + place, []) for place in range(self._num_drawn)]
            drawn.sort(key=_mean_logprob, reverse=True)
            for rank, pieces in enumerate(drawn[: self._num_kept]):
                best += [self._told(piece, prompt * self._num_kept + rank) for piece in pieces]
        return best

    def _told(self, piece: Piece, choice: int) -> Piece:
        return piece._replace(choice=choice, logprobs=piece.logprobs if self._shows_logprobs else ())


def _mean_logprob(pieces: list[Piece]) -> float:
    logprobs = [entry.logprob for piece in pieces for entry in piece.logprobs]
    return sum(logprobs) / max(len(logprobs), 1)
