"""How Ollama words errors, headers and signs of life: one JSON object a line, and nothing that is not one."""

import msgspec

from penstock.service.server.dialect import Progress
from penstock.service.server.http.faults import ApiError


class OllamaDialect:
    name = "ollama"
    stream_headers = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"))
    ping = b""
    """Its clients parse every line as an answer, so silence is all we can send."""

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, msgspec.json.encode({"error": error.message})

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        return msgspec.json.encode({"error": error.message}) + b"\n"

    def headers(self, request_id: bytes, spent_ms: int) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", request_id)]

    def progress(self, progress: Progress) -> bytes:
        return msgspec.json.encode({"done": False, "progress": progress.value}) + b"\n"

    def comment(self, progress: Progress) -> bytes:
        return b""


DIALECT = OllamaDialect()
