"""What a dialect of the API is to the rest of the server: how it words errors and signs of life, and how it words an answer.

A dialect is a folder beside this file: its body types, how they become a `Generation`, and encoders that word the segments of
an answer. Errors are of our kinds; their shapes are the dialect's. Nothing here or in `http/` knows which dialects there are.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from penstock.service.server.calls.call import Call, Piece
from penstock.service.server.http import sse
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
    """Most APIs send server-sent events with names; what a dialect does otherwise, its own class says."""

    stream_headers: HeaderList = sse.HEADERS
    """Headers of an answer in parts."""
    ping: bytes = sse.PING
    """A sign of life in a stream; empty where its clients would not bear one."""

    def error_value(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """An error, as JSON."""

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        """Status and body of an answer that is an error."""
        return error.status, msgspec.json.encode(self.error_value(error, request_id))

    def event(self, name: str, value: dict[str, Any]) -> bytes:
        """One part of a stream."""
        return sse.named_event(name, value)

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """The last words of a stream that breaks off."""
        return self.event("error", self.error_value(error, request_id))

    def headers(self, request_id: bytes, spent_ms: int) -> HeaderList:
        """Headers of every answer."""
        return [(b"x-request-id", request_id)]

    def progress(self, progress: Progress) -> bytes:
        """Progress for a client that asked for it."""
        return self.event("progress", progress.value)

    def comment(self, progress: Progress) -> bytes:
        """Progress for one that did not: nothing its parser would see."""
        return sse.comment(", ".join(f"{name} {value}" for name, value in progress.value.items()))


class AnswerEncoder(Protocol):
    """Words one call, in a stream or whole, never both. Bytes are parts of the stream."""

    dialect: ClassVar[Dialect]

    def opening(self, call: Call) -> bytes:
        """Before anything is known."""
        return b""

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        """News, in order."""

    async def before_end(self, call: Call) -> None:
        """What an answer says last may hang on what it has yet to do."""
        return

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        """After the last delta."""

    def failing(self, error: ApiError) -> bytes:
        """The stream breaks off."""
        return self.dialect.error_event(error, "")

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Remember deltas for `whole`."""

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]: ...
