"""What the router answers itself when a request goes nowhere: the four-key error object that clients know."""

import msgspec

from penstock.errors import PenstockError

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class Refusal(PenstockError):
    """An answer of ours in place of a replica's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: HeaderPairs = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> bytes:
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    @property
    def header_lines(self) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % pair for pair in self.headers)
        return b"content-type: application/json\r\n" + lines

    @property
    def event(self) -> bytes:
        """As the last event of a stream that had begun."""
        return b"data: " + self.body + b"\n\n"


def unavailable(message: str, retry_after_s: int, code: str = "overloaded") -> Refusal:
    """No room or no replica now, for anyone."""
    headers = ((b"retry-after", str(retry_after_s).encode()),)
    return Refusal(503, message, type="server_error", code=code, headers=headers)


def limited(message: str, retry_after_s: int, type: str = "requests", headers: HeaderPairs = ()) -> Refusal:
    """This key has had its share."""
    headers = ((b"retry-after", str(retry_after_s).encode()), *headers)
    return Refusal(429, message, type=type, code="rate_limit_exceeded", headers=headers)


def not_found(what: str) -> Refusal:
    return Refusal(404, what, code="not_found")
