"""How answers are worded: what every voice offers, and the stream of bytes or whole object it makes of a call."""

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.server.http.call import Call
from penstock.server.http.faults import ApiError
from penstock.server.openai.writer import Piece


class Voice(Protocol):
    """One kind of answer. Bytes are events of a stream; `whole` is the answer in one piece."""

    def opening(self) -> bytes:
        """Before anything is known."""

    def telling(self, pieces: Sequence[Piece]) -> bytes:
        """News, in order."""

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        """After the last news."""

    def failing(self, error: ApiError) -> bytes:
        """The stream breaks off."""

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Remember news for `whole`."""

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]: ...
