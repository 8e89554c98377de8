"""Runs a call and sends what comes of it: events as they come, or one object at the end.

Until something of the answer is there no header is sent, so that a refusal has its right status, streaming or not; a call that
has to wait longer gets its headers and then comments, which tell proxies and clients that we live.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from penstock.runtime.core.batch import FinishReason
from penstock.service import marks
from penstock.service.server.calls.call import LENGTH, Call, Failure, Piece, Pipe
from penstock.service.server.calls.calls import Calls, OpenCall
from penstock.service.server.calls.generation import Delivery
from penstock.service.server.calls.usage import token_count
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.exchange import RELAYED
from penstock.service.server.http.faults import error_of_finish, invalid, log_fault

Send = Callable[[Any], Any]
Receive = Callable[[], Any]

PATIENCE_S = 0.5
"""How long a stream's headers wait for its first news."""


class Marker:
    """Ends the writes of one stream in marks: which tokens have been taken in since the last."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._counts = [len(writer.token_ids) for writer in call.writers]
        self._are_over = [writer.is_over for writer in call.writers]

    def mark(self) -> bytes:
        tokens = []
        for index, writer in enumerate(self._call.shown):
            count = self._counts[index]
            if len(writer.token_ids) > count:
                tokens.append((index, writer.token_ids[count:]))
                self._counts[index] = len(writer.token_ids)
            if writer.finish_reason is not None and not self._are_over[index]:
                tokens.append((index, [marks.CUT if writer.finish_reason == LENGTH else marks.ENDED]))
                self._are_over[index] = True
        return marks.mark_of(tokens)

    def marked(self, write: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda *arguments: write(*arguments) + self.mark()


def check_resumed(tokens: dict[int, list[int]], num_choices: int, vocab_size: int, max_context: int) -> None:
    """Raises the error of a client where no engine of ours can have drawn these tokens."""
    for choice, ids in tokens.items():
        if choice >= num_choices or len(ids) > max_context or max(ids) >= vocab_size:
            raise invalid("the answer to go on with is none of this model's", code="invalid_resume")


@dataclass(slots=True)
class HttpAnswer:
    """An ASGI response."""

    _call: Call
    _encoder: AnswerEncoder
    _delivery: Delivery
    _timings: Callable[[Call], dict[str, float]]
    """Asked for the times of the call when it has ended."""
    _admission: Admission
    _calls: Calls
    """Watches over it while it is sent in parts."""
    _headers: list[tuple[bytes, bytes]]
    is_sent: bool = False
    """All of it is on its way, with what it took."""
    _is_resumed: bool = False
    _scope: Any = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        call = self._call
        self._scope = scope
        connection = scope["penstock.connection"]
        call.abort = connection.abort
        relayed = RELAYED.get()
        if relayed is not None and relayed.resumed is not None and self._delivery.is_stream:
            self._pass_over(relayed.resumed)
        if not call.is_over:
            call.start()
        watcher = asyncio.create_task(_cancel_when_gone(receive, call))
        try:
            await (self._stream(send, connection) if self._delivery.is_stream else self._whole(send))
        except Failure as failure:
            if failure.finish.reason is FinishReason.CANCELLED:
                return  # nobody listens
            raise error_of_finish(failure.finish, self._admission.retry_after_s()) from None
        finally:
            watcher.cancel()
            self._calls.leave(call)
            call.close()

    def _pass_over(self, tokens: Mapping[int, Sequence[int]]) -> None:
        """Encode, without sending, what another replica has sent: the answer goes on as it would have there."""
        call, encoder = self._call, self._encoder
        shown = call.resume(tokens)
        encoder.opening(call)
        if shown:
            encoder.reporting(shown)
        self._is_resumed = True

    async def _whole(self, send: Send) -> None:
        call, encoder = self._call, self._encoder
        while not call.is_over:
            encoder.keep(await call.news())
        await encoder.before_end(call)
        times = self._timings(call)
        body = msgspec.json.encode(encoder.whole(call, times if self._delivery.reports_timings else None))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"server-timing", server_timing(times)),
            *self._headers,
        ]
        if RELAYED.get() is not None:
            headers.append((marks.USAGE_HEADER, b"%d %d %d" % token_count(call)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.is_sent = True

    async def _stream(self, send: Send, pipe: Pipe) -> None:
        call, encoder = self._call, self._encoder
        marker = Marker(call) if RELAYED.get() is not None else None
        pieces = await self._first_news() if not call.is_over else []
        waited = f"wait;dur={(time.monotonic() - call.arrival_s) * 1000:.1f}".encode()
        headers = [*encoder.dialect.stream_headers, (b"server-timing", waited), *self._headers]
        report: Callable[[Any], bytes] = encoder.reporting
        if marker is not None:
            call.is_marked = True
            headers.append((marks.RELAY_HEADER, b"1"))
            report = partial(copy_context().run, marker.marked(encoder.reporting))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._calls.enter(OpenCall(call, send, encoder.dialect, self._admission))
        try:
            data = b"" if self._is_resumed else encoder.opening(call)
            if pieces:
                data += encoder.reporting(pieces)
            if marker is not None:
                data += marker.mark()
            await self._write(send, data)
            if not call.is_over:
                call.report_at_once(pipe, report)
            while not call.is_over:
                pieces = await call.news()
                if pieces or marker is not None:
                    await self._write(send, report(pieces))
            self._calls.leave(call)
            await encoder.before_end(call)
            data = encoder.closing(call, self._timings(call) if self._delivery.reports_timings else None)
            if marker is not None:
                data += marks.end_mark(token_count(call))
            await send({"type": "http.response.body", "body": data})
            self.is_sent = True
        except Failure as failure:
            if failure.finish.reason is FinishReason.CANCELLED:
                return
            error = error_of_finish(failure.finish, self._admission.retry_after_s())
            log_fault(error, self._scope)
            data = encoder.failing(error)
            if marker is not None and error.status < 500:  # else another replica may do better: the router sees no end
                data += marks.end_mark(token_count(call))
            await send({"type": "http.response.body", "body": data})

    async def _first_news(self) -> list[Piece]:
        """The first news, or nothing if they take long."""
        first = asyncio.ensure_future(self._call.news())
        done, _ = await asyncio.wait((first,), timeout=PATIENCE_S)
        if not done:
            first.cancel()
            await asyncio.wait((first,))
            if first.cancelled():
                return []
        return first.result()

    async def _write(self, send: Send, data: bytes) -> None:
        call = self._call
        call.sending_since_s = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        call.sending_since_s = None
        call.wrote_s = time.monotonic()


async def _cancel_when_gone(receive: Receive, call: Call) -> None:
    await until_gone(receive)
    call.cancel()


def server_timing(times: dict[str, float]) -> bytes:
    return ", ".join(f"{name.removesuffix('_ms')};dur={value:.2f}" for name, value in times.items()).encode()
