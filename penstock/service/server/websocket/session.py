"""One WebSocket: bodies in, the events of their answers out, through the same door as every request.

    frame {"messages": [...]}   ->  POST of that body to the path of the socket, streamed  ->  a frame for each event
    frame {"type": "cancel"}    ->  the answer under way is given up

A frame that is sent holds what follows `data: ` in the stream of the same request, `[DONE]` included where the dialect has it.
An answer that is refused is one frame with the dialect's error and its `status`. Requests of one socket are answered one after
another, each with keys, limits and counts of its own.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from penstock.service.server.http.faults import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
KEPT_HEADERS = (b"host", b"authorization", b"x-api-key", b"user-agent", b"anthropic-version", b"x-request-timeout-ms")
"""Of the handshake, for every request. What routers tell one another is not a client's to say."""
MAX_PENDING = 16
"""Frames that a client may send ahead."""
CANCEL = {"type": "cancel"}
POLICY, GOING_AWAY = 1008, 1012


class _Pipe:
    """Stands for the connection: writes go through the frames, and a client that stops reading is cut off."""

    is_writable = False

    def __init__(self, session: "asyncio.Task[None] | None") -> None:
        self._session = session

    def abort(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def write_part(self, data: bytes) -> None:
        raise NotImplementedError


class SocketSession:
    """`run` until either side ends it."""

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_draining = is_draining
        self._pending: asyncio.Queue[dict[str, Any] | str | None] = asyncio.Queue(MAX_PENDING + 1)
        self._gone: asyncio.Future[None] | None = None
        self._is_over = False

    async def run(self) -> None:
        await self._receive()  # the handshake
        await self._send({"type": "websocket.accept"})
        reader = asyncio.create_task(self._read())
        pipe = _Pipe(asyncio.current_task())
        try:
            while (body := await self._pending.get()) is not None:
                if isinstance(body, str):
                    await self._report({"error": {"message": body, "type": "invalid_request_error"}, "status": 400})
                else:
                    await self._answer(body, pipe)
                if self._is_draining():
                    break
        finally:
            reader.cancel()
            if not self._is_over:
                with contextlib.suppress(Exception):
                    await self._send({"type": "websocket.close", "code": GOING_AWAY})

    async def _read(self) -> None:
        """Frames as they come, also while an answer is under way."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._is_over = True
                self._give_up()
                with contextlib.suppress(asyncio.QueueFull):
                    self._pending.put_nowait(None)
                return
            body = _body_of(message)
            if body == CANCEL:
                self._give_up()
            elif self._pending.qsize() >= MAX_PENDING:
                self._is_over = True
                await self._send({"type": "websocket.close", "code": POLICY, "reason": "too many requests ahead"})
                self._give_up()
                self._pending.put_nowait(None)
                return
            else:
                self._pending.put_nowait(body)

    def _give_up(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def _answer(self, body: dict[str, Any], pipe: _Pipe) -> None:
        data = msgspec.json.encode(body | {"stream": True})
        self._gone = gone = asyncio.get_running_loop().create_future()
        sent = False

        async def receive() -> Any:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": data, "more_body": False}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        events = Events(self._report, self._put)
        await self._app(self._request(len(data), pipe), receive, events)
        if gone.done() and not self._is_over:
            await self._report({"type": "cancelled"})

    def _request(self, num_bytes: int, pipe: _Pipe) -> Scope:
        scope = self._scope
        headers = [pair for pair in scope["headers"] if pair[0] in KEPT_HEADERS]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(num_bytes).encode())]
        return {
            "type": "http",
            "asgi": scope["asgi"],
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": scope["path"],
            "raw_path": scope["path"].encode(),
            "query_string": b"",
            "root_path": scope.get("root_path", ""),
            "headers": headers,
            "client": scope.get("client"),
            "server": scope.get("server"),
            "extensions": {},
            "penstock.connection": pipe,
        }

    async def _report(self, value: Any) -> None:
        await self._put(msgspec.json.encode(value).decode())

    async def _put(self, text: str) -> None:
        if not self._is_over:
            await self._send({"type": "websocket.send", "text": text})


class Events:
    """Takes an HTTP answer and sends a frame for each event of its stream, or one for an answer that is none."""

    def __init__(self, report: Callable[[Any], Awaitable[None]], put: Callable[[str], Awaitable[None]]) -> None:
        self._report = report
        self._put = put
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._rest = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            return
        self._rest += message.get("body", b"")
        if self._headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            *whole, self._rest = self._rest.split(b"\n\n")
            for event in whole:
                for data in _data_in(event):
                    await self._put(data)
        elif not message.get("more_body", False):
            value = msgspec.json.decode(self._rest) if self._rest else {}
            payload = value | {"status": self._status} if isinstance(value, dict) else {"status": self._status}
            retry = self._headers.get(b"retry-after")
            await self._report(payload if retry is None else payload | {"retry_after": float(retry)})


def _data_in(event: bytes) -> Iterator[str]:
    """Comments and names of events are left out: each object says what it is."""
    for line in event.split(b"\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").decode()


def _body_of(message: Any) -> dict[str, Any] | str:
    """The object that a frame holds, or what is wrong with it."""
    try:
        body = msgspec.json.decode(message.get("text") or message.get("bytes") or "")
    except (ValueError, RecursionError):
        return "the frame is not JSON; send the body of a request"
    return body if isinstance(body, dict) else "the frame must be a JSON object; send the body of a request"


async def refuse(scope: Scope, send: Send, status: int, body: bytes, error: ApiError) -> None:
    """Before a socket is opened: an HTTP answer where the server can give one, else a close."""
    if "websocket.http.response" in scope.get("extensions", {}):
        headers = [(b"content-type", b"application/json"), *error.headers]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": POLICY})
