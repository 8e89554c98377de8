"""One client's connection: reads requests within bounds, writes answers, and says when the client is slow or gone.

Requests are handed over whole, one at a time; while one is being answered nothing more is read. What is passed on is written
anew from what was parsed here, so that a request which two parsers would read differently never leaves: it is refused.
"""

import asyncio
import time
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import httptools

from penstock.service.router.proxy.faults import Refusal

MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 100
HEADERS_S = 10.0
BODY_S = 60.0
KEEP_ALIVE_S = 75.0
HIGH_WATER = 64 << 10
STALL_S = 60.0
"""How long a client may stop reading before it is cut off."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {value: f"HTTP/1.1 {value} {phrase}\r\n".encode() for value, phrase in _REASONS.items()}


class Incoming(NamedTuple):
    """A request as it was parsed. Header names are in lower case; of repeated ones the first counts."""

    method: str
    path: str
    """Without the query."""
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    arrival_s: float


class Answering(Protocol):
    """What answers a request on a connection."""

    def on_client_gone(self) -> None: ...

    def on_client_slow(self) -> None: ...

    def on_client_ready(self) -> None: ...


class RequestHandler(Protocol):
    max_body_bytes: int

    def handle(self, request: Incoming, client: "InboundConnection") -> None:
        """Answer it, now or later, and call `finish`."""

    def opened(self, client: "InboundConnection") -> None: ...

    def closed(self, client: "InboundConnection") -> None: ...


class InboundConnection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_handler",
        "_headers",
        "_is_answering",
        "_is_chunked",
        "_is_closing",
        "_loop",
        "_num_bytes",
        "_num_header_bytes",
        "_parser",
        "_url",
        "_waiting",
        "answering",
        "deadline_s",
        "is_open",
        "transport",
    )

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[tuple[Incoming, bool]] = []
        """Requests sent ahead of their turn."""
        self._reset()
        self._is_answering = False
        self._is_chunked = False
        self._is_closing = False
        self.answering: Answering | None = None
        self.transport: Any = None
        self.is_open = False
        self.deadline_s: float | None = None
        """When a sweep may cut this connection off."""

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._num_bytes = self._num_header_bytes = 0
        self._body: list[bytes] = []

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self.is_open = True
        self.deadline_s = time.monotonic() + KEEP_ALIVE_S
        self._handler.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._handler.closed(self)
        self._waiting.clear()
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.on_client_gone()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if not self._num_bytes and not self._is_answering:
            self.deadline_s = time.monotonic() + HEADERS_S
        self._num_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(Refusal(400, "no other protocol than HTTP/1.1 is spoken here", code="invalid_http"))
        except Refusal as error:
            self.refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            told = cause if isinstance(cause, Refusal) else None
            self.refuse(told or Refusal(400, "the request is not HTTP as we read it; mend it", code="invalid_http"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.deadline_s = time.monotonic() + STALL_S
        if self.answering is not None:
            self.answering.on_client_slow()

    def resume_writing(self) -> None:
        self.deadline_s = None
        if self.answering is not None:
            self.answering.on_client_ready()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._reset()
        self._num_bytes = 1

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        name = name.lower()
        if name in self._headers:
            if name in (b"content-length", b"transfer-encoding", b"host", b"authorization"):
                raise Refusal(400, f"the header {name.decode()} came twice; send one", code="invalid_http")
            return
        self._headers[name] = value
        if len(self._headers) > MAX_HEADERS:
            raise Refusal(431, "the request has too many headers; send fewer", code="headers_too_large")

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise Refusal(431, "the request's headers are too long; send fewer", code="headers_too_large")

    def on_headers_complete(self) -> None:
        headers, version = self._headers, self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Refusal(400, "no other protocol than HTTP/1.1 is spoken here", code="invalid_http")
        if version == "1.0" and b"transfer-encoding" in headers:
            raise Refusal(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length", code="invalid_http")
        if version == "1.1" and b"host" not in headers:
            raise Refusal(400, "a request has one Host header; send one", code="invalid_http")
        if b"transfer-encoding" in headers and (
            b"content-length" in headers or headers[b"transfer-encoding"].lower().strip() != b"chunked"
        ):
            raise Refusal(400, "the body's length is said in two ways; send one", code="invalid_http")
        claimed = headers.get(b"content-length", b"0")
        if not claimed.isdigit() or len(claimed) > 18 or int(claimed) > self._handler.max_body_bytes:
            raise self._too_large()
        if headers.get(b"expect", b"").lower() == b"100-continue" and not self._is_answering:
            self.transport.write(CONTINUE)
        if not self._is_answering:
            self.deadline_s = time.monotonic() + BODY_S
        self._num_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._num_bytes += len(body)
        if self._num_bytes > self._handler.max_body_bytes:
            raise self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        url = httptools.parse_url(self._url) if self._url[:1] == b"/" else None
        if url is None or url.path is None:
            raise Refusal(400, "the request's path is not one we read; begin it with /", code="invalid_http")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Incoming(
            self._parser.get_method().decode("latin-1"),
            url.path.decode("latin-1"),
            (url.query or b"").decode("latin-1"),
            self._headers,
            body,
            time.monotonic(),
        )
        keeps_alive = self._parser.should_keep_alive()
        self._reset()
        if self._is_answering:
            self._waiting.append((request, keeps_alive))
            self.transport.pause_reading()
        else:
            self._answer(request, keeps_alive)

    def _answer(self, request: Incoming, keeps_alive: bool) -> None:
        self._is_answering = True
        self._is_closing = not keeps_alive
        self.deadline_s = None
        self._handler.handle(request, self)

    def _too_large(self) -> Refusal:
        most = self._handler.max_body_bytes >> 20
        return Refusal(413, f"the body is larger than {most} MiB; send less", code="request_too_large")

    # What whoever answers calls

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """A whole answer. `headers` are lines that each end in CRLF."""
        self.transport.write(
            b"%b%bcontent-length: %d\r\n%b\r\n%b"
            % (_status_line(status), headers, len(body), self._connection_header(), body)
        )
        self.finish()

    def begin(self, status: int, headers: bytes) -> None:
        """An answer of unknown length: `write` follows, then `end`."""
        self._is_chunked = True
        self.transport.write(
            b"%b%btransfer-encoding: chunked\r\n%b\r\n" % (_status_line(status), headers, self._connection_header())
        )

    def write(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.transport.write(b"0\r\n\r\n")
        self.finish()

    def finish(self) -> None:
        """The answer is over: the next request, if there is one."""
        self._is_answering = False
        self._is_chunked = False
        self.answering = None
        if not self.is_open:
            return
        if self._is_closing:
            self.transport.close()
        elif self._waiting:
            self._loop.call_soon(self._next)
        else:
            self.deadline_s = time.monotonic() + KEEP_ALIVE_S

    def _next(self) -> None:
        if self._waiting and not self._is_answering and self.is_open:
            request, keeps_alive = self._waiting.pop(0)
            if not self._waiting:
                self.transport.resume_reading()
            self._answer(request, keeps_alive)

    def refuse(self, error: Refusal) -> None:
        """Whatever was being read cannot be made sense of: say so, and close."""
        self._is_closing = True
        if self.is_open and not self._is_answering:
            self._is_answering = True
            self.respond(error.status, b"x-request-id: none\r\n" + error.header_lines, error.body)
        elif self.is_open:
            self._waiting.clear()

    def close_when_done(self) -> None:
        """No further request is taken on this connection."""
        self._is_closing = True
        if not self._is_answering and self.is_open:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _connection_header(self) -> bytes:
        return b"connection: close\r\n" if self._is_closing else b""


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Other\r\n".encode()
