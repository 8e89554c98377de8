"""How Ollama words errors, headers and signs of life: one JSON object a line, and nothing that is not one."""

from datetime import UTC, datetime
from typing import Any

from penstock.service.server.dialect import Dialect, Progress
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.sse import quoted


def line_of(value: dict[str, Any]) -> bytes:
    """One line, whoever cuts it: readers of lines, Ollama's own Python client among them, know more ends than JSON does."""
    return quoted(value) + b"\n"


def stamp_of(seconds: float) -> str:
    """A time as its clients read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class OllamaDialect(Dialect):
    stream_headers = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"))
    ping = b""
    """Its clients parse every line as an answer, so silence is all we can send."""

    def error_value(self, error: ApiError, request_id: str) -> dict[str, Any]:
        return {"error": error.message}

    def event(self, name: str, value: dict[str, Any]) -> bytes:
        return line_of(value)

    def progress(self, progress: Progress) -> bytes:
        return line_of({"done": False, "progress": progress.value})

    def comment(self, progress: Progress) -> bytes:
        return b""


DIALECT = OllamaDialect()
