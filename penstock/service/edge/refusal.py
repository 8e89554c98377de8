"""Refusals: an error that a client is answered with before any model is asked, worded as the client's API words errors."""

from typing import Any

import msgspec

from penstock.errors import PenstockError

HeaderPairs = tuple[tuple[bytes, bytes], ...]
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
OVERLOADED = 529
"""What the Messages API answers where HTTP has 503."""
QUOTA = "insufficient_quota"


class Refusal(PenstockError):
    """`type` and `code` are OpenAI's words; other dialects find theirs by the status."""

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
        return msgspec.json.encode(self._openai)

    @property
    def _openai(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}

    @property
    def header_lines(self) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % pair for pair in self.headers)
        return b"content-type: application/json\r\n" + lines

    def worded(self, path: str, request_id: bytes) -> tuple[int, bytes]:
        """Status and body for a client that asked for this path."""
        if is_ollama(path):
            return self.status, msgspec.json.encode({"error": str(self)})
        if is_anthropic(path):
            status = OVERLOADED if self.status == 503 else self.status
            return status, msgspec.json.encode(self._anthropic(status, request_id))
        return self.status, self.body

    def event(self, path: str, request_id: bytes) -> bytes:
        """The last event of a stream that had begun."""
        _, body = self.worded(path, request_id)
        if is_ollama(path):
            return body + b"\n"
        if is_responses := path.startswith("/v1/responses"):
            event = {"type": "error", "code": self.code, "message": str(self), "param": self.param}
            body = msgspec.json.encode(event | self._openai)
        name = b"event: error\n" if is_responses or is_anthropic(path) else b""
        return name + b"data: " + body + b"\n\n"

    def _anthropic(self, status: int, request_id: bytes) -> dict[str, Any]:
        name = "billing_error" if self.type == QUOTA else ANTHROPIC_TYPES.get(status, "invalid_request_error")
        error = {"type": name, "message": str(self)}
        return {"type": "error", "error": error, "request_id": request_id.decode("latin-1")}


def is_ollama(path: str) -> bool:
    return path.startswith("/api/")


def is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def unavailable(message: str, retry_after_s: int, code: str = "overloaded") -> Refusal:
    """No room or no replica now, for anyone."""
    headers = ((b"retry-after", str(retry_after_s).encode()),)
    return Refusal(503, message, type="server_error", code=code, headers=headers)


def limited(message: str, retry_after_s: int, type: str = "requests", headers: HeaderPairs = ()) -> Refusal:
    """This key has had its share."""
    headers = ((b"retry-after", str(retry_after_s).encode()), *headers)
    return Refusal(429, message, type=type, code="rate_limit_exceeded", headers=headers)


def forbidden(message: str, code: str) -> Refusal:
    return Refusal(403, message, type="permission_error", code=code)


def not_found(what: str) -> Refusal:
    return Refusal(404, what, code="not_found")


def not_http(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_http")


def no_key() -> Refusal:
    return Refusal(
        401,
        "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )
