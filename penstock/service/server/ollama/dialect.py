"""How Ollama words errors, headers and signs of life: one JSON object a line, and nothing that is not one."""

from typing import Any

import msgspec

from penstock.service.server.dialect import Progress
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.sse import quoted


def line_of(value: dict[str, Any]) -> bytes:
    """One line, whoever cuts it: readers of lines, Ollama's own Python client among them, know more ends than JSON does."""
    return quoted(value) + b"\n"


class OllamaDialect:
    stream_headers = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"))
    ping = b""
    """Its clients parse every line as an answer, so silence is all we can send."""

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, msgspec.json.encode({"error": error.message})

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        return line_of({"error": error.message})

    def headers(self, request_id: bytes, spent_ms: int) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", request_id)]

    def progress(self, progress: Progress) -> bytes:
        return line_of({"done": False, "progress": progress.value})

    def comment(self, progress: Progress) -> bytes:
        return b""


DIALECT = OllamaDialect()
