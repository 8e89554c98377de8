"""One WebSocket: bodies in, the events of their answers out (`edge/frames.py`), through the same door as every request."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.service.edge.frames import (
    CANCEL,
    CANCELLED,
    GOING_AWAY,
    KEPT_HEADERS,
    MAX_PENDING,
    POLICY,
    STREAM_TYPE,
    bad_frame,
    body_of,
    frames_in,
    streamed,
    whole_frame,
)
from penstock.service.server.http.faults import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


class SocketSession:
    """`run` until either side ends it. The connection that its requests find in their scopes."""

    is_writable = False
    """What is written goes through the frames."""

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_draining = is_draining
        self._pending: asyncio.Queue[dict[str, Any] | str | None] = asyncio.Queue(MAX_PENDING + 1)
        self._gone: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_gone = False

    def abort(self) -> None:
        """A client that stops reading is cut off."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        await self._receive()  # the handshake
        await self._send({"type": "websocket.accept"})
        reader = asyncio.create_task(self._read())
        self._task = asyncio.current_task()
        try:
            while (body := await self._pending.get()) is not None:
                if isinstance(body, str):
                    await self._put(bad_frame(body))
                else:
                    await self._answer(body)
                if self._is_draining():
                    break
        finally:
            reader.cancel()
            if not self.is_gone:
                with contextlib.suppress(Exception):
                    await self._send({"type": "websocket.close", "code": GOING_AWAY})

    async def _read(self) -> None:
        """Frames as they come, also while an answer is under way."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.is_gone = True
                self._give_up()
                with contextlib.suppress(asyncio.QueueFull):
                    self._pending.put_nowait(None)
                return
            body = body_of(message.get("text") or message.get("bytes") or "")
            if body == CANCEL:
                self._give_up()
            elif self._pending.qsize() >= MAX_PENDING:
                self.is_gone = True
                reason = f"more than {MAX_PENDING} requests were sent ahead"
                await self._send({"type": "websocket.close", "code": POLICY, "reason": reason})
                self._give_up()
                self._pending.put_nowait(None)
                return
            else:
                self._pending.put_nowait(body)

    def _give_up(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def _answer(self, body: dict[str, Any]) -> None:
        data = streamed(body)
        self._gone = gone = asyncio.get_running_loop().create_future()
        unread = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        events = Events(self._put)
        await self._app(self._request(len(data)), receive, events)
        if gone.done() and not self.is_gone:
            await self._put(CANCELLED)

    def _request(self, num_bytes: int) -> Scope:
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
            "penstock.connection": self,
        }

    async def _put(self, frame: bytes) -> None:
        if not self.is_gone:
            await self._send({"type": "websocket.send", "text": frame.decode()})


class Events:
    """Takes an HTTP answer and sends a frame for each event of its stream, or one for an answer that is none."""

    def __init__(self, put: Callable[[bytes], Awaitable[None]]) -> None:
        self._put = put
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._rest = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            return
        self._rest += message.get("body", b"")
        if self._headers.get(b"content-type", b"").startswith(STREAM_TYPE):
            *whole, self._rest = self._rest.split(b"\n\n")
            for event in whole:
                for frame in frames_in(event):
                    await self._put(frame)
        elif not message.get("more_body", False):
            await self._put(whole_frame(self._status, self._headers, self._rest))


async def refuse(scope: Scope, send: Send, status: int, body: bytes, error: ApiError) -> None:
    """Before a socket is opened: an HTTP answer where the server can give one, else a close."""
    if "websocket.http.response" in scope.get("extensions", {}):
        headers = [(b"content-type", b"application/json"), *error.headers]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": POLICY})
