"""How Ollama words errors, headers and signs of life: one JSON object a line, and nothing that is not one."""

from typing import Any

import msgspec

from penstock.service.server.dialect import Progress
from penstock.service.server.http.faults import ApiError

LINE_ENDS = ("\x85", "\u2028", "\u2029")
"""What JSON may have in a string and readers of text lines, Ollama's own Python client among them, take for the end of one."""
_ESCAPES = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in LINE_ENDS)


def line_of(value: dict[str, Any]) -> bytes:
    """One line, whoever cuts it."""
    data = msgspec.json.encode(value)
    for end, escape in _ESCAPES:
        data = data.replace(end, escape)
    return data + b"\n"


class OllamaDialect:
    name = "ollama"
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
