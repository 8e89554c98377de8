"""One client's connection: the HTTP parser's, with bounds on how much and how slowly it may send before we listen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.service.edge.flow import Flow
from penstock.service.edge.headers import HEADERS_S, MAX_HEADER_BYTES, MAX_PIPELINED, MAX_UNWANTED_BYTES, too_long
from penstock.service.edge.refusal import Refusal, not_http

LOOK_S = 0.1
"""When a client's time is up we look once more: what it sent while we did not run has not been read yet."""
_ERRORS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


async def until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """The client of a request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class PipelineFull(Exception):
    """A client has sent more requests than it may before it reads the answers."""


class Connection(HttpToolsProtocol):
    """Each request finds it in its scope as `penstock.connection`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_in_headers = True
        self._num_header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._num_unwanted_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that connects ahead of its first request may be as silent as one between two requests."""
        super().connection_made(transport)
        self.flow = Flow(transport)  # type: ignore[assignment]
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_gone:
            return
        if self._is_in_headers:
            self._num_header_bytes += len(data)
            # The first data may hold headers and body together: what is too long then is the header part alone.
            if self._num_header_bytes > MAX_HEADER_BYTES and b"\r\n\r\n" not in data[: MAX_HEADER_BYTES + 4]:
                self._refuse(too_long())
                return
        if self.cycle is None or self.cycle.response_complete:
            if self.cycle is not None and self.cycle.more_body:
                self._num_unwanted_bytes += len(data)
                if self._num_unwanted_bytes > MAX_UNWANTED_BYTES:
                    self.transport.abort()
                    return
            else:
                self._start_timer()  # at the first byte, were it only an empty line
        super().data_received(data)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise PipelineFull  # ends the parsing of what was read together with it
        super().on_message_begin()
        self._is_in_headers = True
        self._start_timer()
        self.scope["penstock.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._num_header_bytes = self._num_unwanted_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    @property
    def is_gone(self) -> bool:
        return self.transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """What is written now does not wait behind much else, and its reader knows parts."""
        is_old = self.scope["http_version"] == "1.0"
        return not self.flow.write_paused and not self.is_gone and not is_old

    def write_part(self, data: bytes) -> None:
        """A part of a body of unknown length, headers sent: what `send` does, without its ceremony. An empty part would be the
        body's end, so it is none."""
        if data:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """Drop the connection, whether its client reads or not."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if not self.is_gone:
            self._refuse(not_http("the request is not HTTP as we read it; mend it"))

    def _refuse(self, error: Refusal) -> None:
        head = f"HTTP/1.1 {error.status} {_ERRORS[error.status]}\r\ncontent-length: {len(error.body)}\r\n"
        rest = b"x-request-id: none\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + error.header_lines + rest + error.body)
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(LOOK_S, super().timeout_keep_alive_handler)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADERS_S, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = self.loop.call_later(LOOK_S, self.transport.abort)
