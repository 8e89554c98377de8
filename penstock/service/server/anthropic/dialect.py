"""How the Messages API words errors, headers and signs of life."""

from typing import Any

from penstock.service.edge.refusal import ANTHROPIC_TYPES, OVERLOADED
from penstock.service.server.dialect import Dialect, HeaderList
from penstock.service.server.http import sse
from penstock.service.server.http.faults import ApiError, ErrorKind

STATUS = {ErrorKind.QUOTA: 402, ErrorKind.UNAVAILABLE: OVERLOADED}
"""Other kinds keep their own."""
TYPES = ANTHROPIC_TYPES | {402: "billing_error"}
"""By status; others are the client's fault."""


class AnthropicDialect(Dialect):
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def error_value(self, error: ApiError, request_id: str) -> dict[str, Any]:
        name = TYPES.get(STATUS.get(error.kind, error.status), "invalid_request_error")
        return {"type": "error", "error": {"type": name, "message": _message(error)}, "request_id": request_id}

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        status, body = super().error(error, request_id)
        return STATUS.get(error.kind, status), body

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
