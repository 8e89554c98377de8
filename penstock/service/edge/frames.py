"""WebSockets: a frame holds the body of a request, or one event of its answer; the same at server and router.

    frame {"messages": [...]}   ->  POST of that body to the path of the socket, streamed  ->  a frame for each event
    frame {"type": "cancel"}    ->  the answer under way is given up

A frame that is sent holds what follows `data: ` in the stream of the same request, `[DONE]` included where the dialect has it.
An answer that is refused is one frame with the dialect's error and its `status`. Requests of one socket are answered one after
another, each with keys, limits and counts of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

SOCKET_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
KEPT_HEADERS = (b"host", b"authorization", b"x-api-key", b"user-agent", b"anthropic-version", b"x-request-timeout-ms")
"""Of the handshake, for every request. What routers tell one another is not a client's to say."""
MAX_PENDING = 16
"""Frames that a client may send ahead."""
CANCEL = {"type": "cancel"}
CANCELLED = b'{"type":"cancelled"}'
POLICY, GOING_AWAY = 1008, 1012
STREAM_TYPE = b"text/event-stream"


def body_of(frame: str | bytes) -> dict[str, Any] | str:
    """The object that a frame holds, or what is wrong with it."""
    try:
        body = msgspec.json.decode(frame)
    except (ValueError, RecursionError):
        return "the frame is not JSON; send the body of a request"
    return body if isinstance(body, dict) else "the frame must be a JSON object; send the body of a request"


def bad_frame(message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}, "status": 400})


def streamed(body: dict[str, Any]) -> bytes:
    """The request that a frame stands for."""
    return msgspec.json.encode(body | {"stream": True})


def frames_in(event: bytes) -> Iterator[bytes]:
    """Comments and names of events are left out: each object says what it is."""
    for line in event.split(b"\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ")


def whole_frame(status: int, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    """An answer that is no stream."""
    value = msgspec.json.decode(body) if body else {}
    payload = value | {"status": status} if isinstance(value, dict) else {"status": status}
    retry = headers.get(b"retry-after")
    return msgspec.json.encode(payload if retry is None else payload | {"retry_after": float(retry)})
