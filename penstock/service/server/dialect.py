"""What a dialect of the API is to the rest of the server: how it words errors and signs of life, and how it words an answer.

A dialect is a folder beside this file: its body types, how they become a `Generation`, and encoders that word the segments of
an answer. Errors are of our kinds; their shapes are the dialect's. Nothing here or in `http/` knows which dialects there are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.service.server.http.call import Call, Piece
from penstock.service.server.http.faults import ApiError

HeaderList = Sequence[tuple[bytes, bytes]]


class Progress(NamedTuple):
    """How far a call that waits has come: with its model being loaded, in the queue, or in its prompt."""

    stage: str
    position: int | None = None
    """Place in the queue, from 1."""
    eta_s: float | None = None
    percent: int | None = None
    """Of the prompt that is computed, or of the time that loading the model took before."""
    phase: str = ""
    """Of a model that is being loaded: what its engine does now."""

    @property
    def value(self) -> dict[str, Any]:
        if self.phase:
            return {"stage": self.stage, "phase": self.phase, "percent": self.percent, "eta_s": self.eta_s}
        if self.percent is not None:
            return {"stage": self.stage, "percent": self.percent}
        return {"stage": self.stage, "position": self.position, "eta_s": self.eta_s}


class Dialect(Protocol):
    @property
    def stream_headers(self) -> HeaderList:
        """Headers of an answer in parts."""

    @property
    def ping(self) -> bytes:
        """A sign of life in a stream; empty where its clients would not bear one."""

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        """Status and body of an answer that is an error."""

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """The last words of a stream that breaks off."""

    def headers(self, request_id: bytes, spent_ms: int) -> HeaderList:
        """Headers of every answer."""

    def progress(self, progress: Progress) -> bytes:
        """Progress for a client that asked for it."""

    def comment(self, progress: Progress) -> bytes:
        """Progress for one that did not: nothing its parser would see."""


class AnswerEncoder(Protocol):
    """Words one call, in a stream or whole, never both. Bytes are parts of the stream."""

    @property
    def dialect(self) -> Dialect: ...

    def opening(self, call: Call) -> bytes:
        """Before anything is known."""

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        """News, in order."""

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        """After the last delta."""

    def failing(self, error: ApiError) -> bytes:
        """The stream breaks off."""

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Remember deltas for `whole`."""

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]: ...
