"""Server-sent events as bytes. What does not change in a stream is made once and joined to what does."""

import msgspec

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_S = 10.0
"""A stream on which nothing was written for so long gets a sign of life."""
END = b"\n\n"

_SEPARATORS = tuple((mark.encode(), f"\\u{ord(mark):04x}".encode()) for mark in "\u0085\u2028\u2029")
"""Characters at which many clients split lines, though JSON does not mind them and events end at others."""


def quoted(value: object) -> bytes:
    """Any value as JSON that is one line to everybody."""
    data = msgspec.json.encode(value)
    if not data.isascii():
        for mark, escaped in _SEPARATORS:
            if mark in data:
                data = data.replace(mark, escaped)
    return data


def event(value: object) -> bytes:
    return b"data: " + quoted(value) + END


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def named_event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + quoted(value) + END
