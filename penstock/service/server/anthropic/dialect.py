"""How the Messages API words errors, headers and signs of life."""

from typing import Any

from penstock.service.server.dialect import Dialect, HeaderList
from penstock.service.server.http import sse
from penstock.service.server.http.faults import ApiError, ErrorKind

SHAPES: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID: (400, "invalid_request_error"),
    ErrorKind.AUTHENTICATION: (401, "authentication_error"),
    ErrorKind.QUOTA: (402, "billing_error"),
    ErrorKind.PERMISSION: (403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, "rate_limit_error"),
    ErrorKind.INTERNAL: (500, "api_error"),
    ErrorKind.DEADLINE: (504, "timeout_error"),
    ErrorKind.UNAVAILABLE: (529, "overloaded_error"),
}
"""Status and type; other kinds keep their own status and are the client's fault."""


class AnthropicDialect(Dialect):
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def error_value(self, error: ApiError, request_id: str) -> dict[str, Any]:
        _, name = SHAPES.get(error.kind, (0, "invalid_request_error"))
        return {"type": "error", "error": {"type": name, "message": _message(error)}, "request_id": request_id}

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        status, body = super().error(error, request_id)
        return SHAPES.get(error.kind, (status, ""))[0], body

    def event(self, name: str, value: dict[str, Any]) -> bytes:
        return sse.named_event(name, {"type": name} | value)

    def headers(self, request_id: bytes, spent_ms: int) -> HeaderList:
        return [(b"x-request-id", request_id), (b"request-id", request_id)]


DIALECT = AnthropicDialect()


def _message(error: ApiError) -> str:
    """A prompt that is too long is reported in the words that agents look for before they shorten it."""
    overflow = error.overflow
    if overflow is None:
        return error.message
    if overflow.num_prompt >= overflow.max_context:
        return f"prompt is too long: {overflow.num_prompt} tokens > {overflow.max_context} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {overflow.num_prompt} + {overflow.max_tokens} > "
        f"{overflow.max_context}, decrease input length or `max_tokens` and try again"
    )
