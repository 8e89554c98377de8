"""One client's connection: reads requests within bounds, writes answers, and says when the client is slow or gone.

Requests are handed over whole, one at a time. A caller is known before its body is read; what comes during an answer is kept
unread, within bounds. What is passed on is written anew from what was parsed here, so that a request which two parsers
would read differently never leaves: it is refused.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

import httptools

from penstock.service.edge.bodies import BodiesInFlight, BodyAccount
from penstock.service.edge.flow import Flow
from penstock.service.edge.headers import (
    HEADERS_S,
    KEEP_ALIVE_S,
    MAX_HEADER_BYTES,
    MAX_PIPELINED,
    MAX_UNWANTED_BYTES,
    HeaderTally,
    too_long,
)
from penstock.service.edge.memory import LARGE_BYTES, trim_soon
from penstock.service.edge.refusal import Refusal, not_http, unavailable
from penstock.service.router.proxy.incoming import AnswerSink, Incoming, target_of

BODY_S = 60.0
SMALL_BYTES = 4 << 10
"""A body of this size takes no more than its connection does: it is not counted."""
HIGH_WATER = 64 << 10
MAX_AHEAD_BYTES = 64 << 10
"""Kept unread while an answer is under way; beyond it nothing is read."""
LINGER_S = 5.0
"""How long a refused client may go on sending, so that it reads why."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class Answering(Protocol):
    """What answers a request on a connection."""

    def on_client_gone(self) -> None: ...

    def on_client_slow(self) -> None: ...

    def on_client_ready(self) -> None: ...


class UpgradedSession(Answering, Protocol):
    """What reads a connection that speaks another protocol from now on."""

    def opened(self) -> None: ...

    def receive(self, data: bytes) -> None: ...

    def drain(self) -> None: ...


class RequestHandler(Protocol):
    max_body_bytes: int
    bodies: BodiesInFlight
    clients: "set[InboundConnection]"
    """Connected ones."""

    def check(self, method: str, path: str, headers: dict[bytes, bytes]) -> Any:
        """Who calls, before a byte of a body is read; `tenant` of it names whose memory a body takes. Raises Refusal."""

    def handle(self, request: Incoming, client: AnswerSink) -> None:
        """Answer it, now or later."""

    def refuse(self, request: Incoming, client: AnswerSink, error: Refusal) -> None:
        """Answer that it is refused."""


@dataclass(slots=True, eq=False)
class InboundConnection(asyncio.Protocol):
    _handler: RequestHandler
    answering: Answering | None = None
    transport: Any = None
    flow: Flow = field(init=False)
    is_open: bool = False
    deadline_s: float | None = None
    """When a sweep may cut this connection off."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _parser: Any = None
    _waiting: deque[tuple[Incoming, bool, bool]] = field(default_factory=deque)
    """Requests that were read together with one before."""
    _ahead: list[bytes] = field(default_factory=list)
    """What came while an answer was under way."""
    _kept: BodyAccount = field(init=False)
    """Of the body that is being read or answered."""
    _url: bytes = b""
    _tally: HeaderTally = field(default_factory=HeaderTally)
    _request: Incoming | None = None
    """Its head is here, its body is not whole yet."""
    _is_unchecked: bool = False
    """Its caller has not been looked at."""
    _body: list[bytes] = field(default_factory=list)
    _num_body: int = 0
    """Bytes of it."""
    _is_answering: bool = False
    _is_closing: bool = False
    _is_refused: bool = False
    _session: UpgradedSession | None = None
    _num_unwanted: int = 0
    _num_together: int = 0
    """Requests in what was read last."""
    _num_unfinished: int = 0
    """Bytes of a header, or of a trailer, that has not ended: the parser puts its pieces together anew at every read."""

    def __post_init__(self) -> None:
        self._kept = BodyAccount(self._handler.bodies)
        self._parser = httptools.HttpRequestParser(self)

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.flow = Flow(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self.is_open = True
        self.deadline_s = time.monotonic() + KEEP_ALIVE_S
        self._handler.clients.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._handler.clients.discard(self)
        self._drop()
        self._parser = None
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.on_client_gone()

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.receive(data)
        elif self._is_refused:
            self._num_unwanted += len(data)
            if self._num_unwanted > MAX_UNWANTED_BYTES:
                self.abort()
        elif self._is_answering or self.flow.write_paused or self._waiting:
            self._ahead.append(data)
            if sum(map(len, self._ahead)) > MAX_AHEAD_BYTES:
                self.flow.pause_reading()
        elif not self._is_closing:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._num_together = 0
        num_seen = self._tally.count + len(self._body)
        if not self._url:
            self.deadline_s = time.monotonic() + HEADERS_S
        try:
            self._parser.feed_data(data)
            has_moved = self._num_together or self._tally.count + len(self._body) > num_seen
            self._num_unfinished = 0 if has_moved else self._num_unfinished + len(data)
            if self._num_unfinished > MAX_HEADER_BYTES:
                raise too_long()
        except httptools.HttpParserUpgrade as error:
            if self._session is None:
                self.refuse(not_http("no other protocol than HTTP/1.1 is spoken here"))
            elif rest := data[error.args[0] :]:
                self._session.receive(rest)
        except Refusal as error:
            self.refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = cause if isinstance(cause, Refusal) else None
            self.refuse(refusal or not_http("the request is not HTTP as we read it; mend it"))

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        if self.answering is not None:
            self.answering.on_client_slow()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if self.answering is not None:
            self.answering.on_client_ready()
        elif not self._is_answering:
            self._loop.call_soon(self._next)

    # What the parser calls

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > MAX_HEADER_BYTES:
            raise too_long()

    @property
    def on_header(self) -> Callable[[bytes, bytes], None]:
        return self._tally.add

    def on_headers_complete(self) -> None:
        headers = self._tally.values
        self._tally.check(self._parser.get_http_version())
        claimed = headers.get(b"content-length", b"0")
        if not claimed.isdigit() or len(claimed) > 18 or int(claimed) > self._handler.max_body_bytes:
            raise self._too_large()
        path, query = target_of(self._url)
        self._request = request = Incoming(self._parser.get_method().decode("latin-1"), path, query, headers)
        self._is_unchecked = True
        if self._is_answering or (claimed == b"0" and b"transfer-encoding" not in headers):
            return  # its turn comes later, or at once
        self._check(request)
        self.deadline_s = time.monotonic() + BODY_S
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(CONTINUE)

    def _check(self, request: Incoming) -> None:
        """Who calls; raises Refusal before anything of the body is kept."""
        self._is_unchecked = False
        request.caller = self._handler.check(request.method, request.path, request.headers)
        if not self._kept.num_bytes:
            self._kept.tenant = getattr(request.caller, "tenant", "")

    def on_body(self, body: bytes) -> None:
        if not self._is_answering:  # else read together with the request before it: no more than one read
            if self._is_unchecked and self._request is not None:
                self._check(self._request)
            self._num_body += len(body)
            if self._num_body > self._handler.max_body_bytes:
                raise self._too_large()
            if self._num_body > SMALL_BYTES:
                is_first = self._num_body - len(body) <= SMALL_BYTES
                self._kept.add(self._num_body if is_first else len(body))
        self._body.append(body)

    def on_message_complete(self) -> None:
        request, is_checked = self._request, not self._is_unchecked
        if request is None:
            return
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request.arrival_s = time.monotonic()
        keeps_alive = self._parser.should_keep_alive()
        self._url, self._body, self._num_body, self._request, self._is_unchecked = b"", [], 0, None, False
        self._tally.clear()
        self._num_together += 1
        if self._num_together > MAX_PIPELINED:
            self.abort()
            raise not_http("too many requests are sent ahead of their answers; read these first")
        if not self._is_answering and not self._waiting and not self.flow.write_paused:
            self._answer(request, is_checked, keeps_alive)
        else:
            self._waiting.append((request, is_checked, keeps_alive))

    def _answer(self, request: Incoming, is_checked: bool, keeps_alive: bool) -> None:
        self._is_answering = True
        self._is_closing |= not keeps_alive
        self.deadline_s = None
        try:
            if not is_checked:
                request.caller = self._handler.check(request.method, request.path, request.headers)
        except Refusal as error:
            self._handler.refuse(request, self, error)
        else:
            self._handler.handle(request, self)

    def _too_large(self) -> Refusal:
        most = self._handler.max_body_bytes >> 20
        return Refusal(413, f"the body is larger than {most} MiB; send less", code="request_too_large")

    # What the handler calls

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """A whole answer. `headers` are lines that each end in CRLF."""
        self._send(b"%bcontent-length: %d\r\n\r\n%b" % (self._head(status, headers), len(body), body))
        self.finish()

    def begin(self, status: int, headers: bytes) -> None:
        """An answer of unknown length: `write` follows, then `end`."""
        self._send(b"%btransfer-encoding: chunked\r\n\r\n" % self._head(status, headers))

    def _head(self, status: int, headers: bytes) -> bytes:
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Other\r\n".encode()
        return b"%b%b%b" % (line, headers, b"connection: close\r\n" if self._is_closing else b"")

    def write(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._send(b"0\r\n\r\n")
        self.finish()

    def _send(self, data: bytes) -> None:
        """A connection that broke a moment ago takes no more, though we have not been told yet."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def upgrade(self, session: UpgradedSession) -> None:
        """The session reads and writes this connection from now on, to its end."""
        self._session = self.answering = session
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        session.opened()

    def finish(self) -> None:
        """The answer is over: the next request, if there is one and its client has read enough."""
        self._is_answering = False
        self.answering = None
        if self._kept.num_bytes:
            self._give_back()
        if not self.is_open:
            return
        if self._is_refused:
            self.deadline_s = time.monotonic() + LINGER_S
        elif self._is_closing:
            self.transport.close()
        elif self._waiting or self._ahead:
            self._loop.call_soon(self._next)
        else:
            self.deadline_s = time.monotonic() + KEEP_ALIVE_S

    def _next(self) -> None:
        if self._is_answering or not self.is_open or self.flow.write_paused or self._is_closing:
            return
        if self._waiting:
            self._answer(*self._waiting.popleft())
        elif self._ahead:
            ahead, self._ahead = b"".join(self._ahead), []
            self.flow.resume_reading()
            self._parse(ahead)
        elif self.deadline_s is None:
            self.deadline_s = time.monotonic() + KEEP_ALIVE_S

    def refuse(self, error: Refusal) -> None:
        """Nothing more of this client is read. One that is sending a body has a moment to read why."""
        request = self._request
        self._is_closing = True
        self._drop()
        if not self.is_open or self._is_answering or self.transport.is_closing():
            return
        self._is_answering = True
        if request is None:
            self.respond(error.status, b"x-request-id: none\r\n" + error.header_lines, error.body)
            return
        self._is_refused = True
        request.arrival_s = time.monotonic()
        self._handler.refuse(request, self, error)

    def close_when_done(self) -> None:
        """No further request is taken on this connection; a request whose body is still coming is refused."""
        self._is_closing = True
        if self._session is not None:
            self._session.drain()
        elif not self._is_answering and self.is_open:
            if self._request is None:
                self.transport.close()
            else:
                self.refuse(shutting_down())

    @property
    def has_unread(self) -> bool:
        """Its client has yet to read an answer, or why it was refused while it was sending."""
        return self.is_open and (self._is_refused or self.transport.get_write_buffer_size() > 0)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _drop(self) -> None:
        """What was read and will not be answered."""
        self._waiting.clear()
        self._ahead.clear()
        self._body = []
        self._request = None
        if not self._is_answering:
            self._give_back()

    def _give_back(self) -> None:
        if self._kept.num_bytes >= LARGE_BYTES:
            trim_soon()
        self._kept.close()


def shutting_down() -> Refusal:
    return unavailable("the router is shutting down; send the request elsewhere", 1, code="shutting_down")
