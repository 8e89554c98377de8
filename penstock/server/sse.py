"""Server-sent events as bytes. What does not change in a stream is made once and joined to what does."""

import msgspec

from penstock.server.faults import ApiError

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
END = b"\n\n"

quoted = msgspec.json.encode
"""Any value as JSON."""


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + END


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def error_event(error: ApiError) -> bytes:
    return b"data: " + error.json + END
