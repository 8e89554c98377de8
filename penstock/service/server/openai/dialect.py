"""How OpenAI's API words errors, headers and signs of life. What belongs to no other dialect is worded so too."""

import msgspec

from penstock.service.server.dialect import Progress
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


class OpenAiDialect:
    stream_headers = sse.HEADERS
    ping = sse.PING

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, msgspec.json.encode(error_value(error))

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        return sse.event(error_value(error))

    def headers(self, request_id: bytes, spent_ms: int) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-request-id", request_id),
            (b"openai-version", b"2020-10-01"),
            (b"openai-processing-ms", str(spent_ms).encode()),
        ]

    def progress(self, progress: Progress) -> bytes:
        return sse.named_event("progress", progress.value)

    def comment(self, progress: Progress) -> bytes:
        return sse.progress_comment(progress.value)


DIALECT = OpenAiDialect()


def error_value(error: ApiError) -> dict[str, dict[str, str | None]]:
    """All four keys are always there; `code` is a text or null."""
    name = TYPES.get(error.kind, "invalid_request_error")
    return {"error": {"message": error.message, "type": name, "param": error.param, "code": error.code}}
