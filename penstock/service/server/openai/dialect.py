"""How OpenAI's API words errors, headers and signs of life. What belongs to no other dialect is worded so too."""

from typing import Any

from penstock.service.server.dialect import Dialect, HeaderList
from penstock.service.server.http import sse
from penstock.service.server.http.faults import ApiError, ErrorKind

TYPES: dict[ErrorKind, str] = {
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.RATE_LIMIT: "requests",
    ErrorKind.QUOTA: "insufficient_quota",
    ErrorKind.INTERNAL: "server_error",
    ErrorKind.UNAVAILABLE: "server_error",
    ErrorKind.DEADLINE: "server_error",
}
"""Other kinds are the client's fault: `invalid_request_error`."""


class OpenAiDialect(Dialect):
    def error_value(self, error: ApiError, request_id: str = "") -> dict[str, Any]:
        """All four keys are always there; `code` is a text or null."""
        name = TYPES.get(error.kind, "invalid_request_error")
        return {"error": {"message": error.message, "type": name, "param": error.param, "code": error.code}}

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        return sse.event(self.error_value(error))

    def headers(self, request_id: bytes, spent_ms: int) -> HeaderList:
        return [
            (b"x-request-id", request_id),
            (b"openai-version", b"2020-10-01"),
            (b"openai-processing-ms", str(spent_ms).encode()),
        ]


class ResponsesDialect(OpenAiDialect):
    """Events of the Responses API have a `type`; the official clients raise where they see an `error`."""

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        said = self.error_value(error, request_id)
        event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return sse.named_event("error", event | said)


DIALECT = OpenAiDialect()
RESPONSES = ResponsesDialect()
