"""One WebSocket at the router: each frame becomes a request like any other, each event of its answer a frame.

The router speaks HTTP to replicas whatever its clients speak, so that keys, limits, budgets, retries and moving streams are the
same for a frame as for a request.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import msgspec
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.service.edge import frames
from penstock.service.edge.bodies import BodyAccount
from penstock.service.edge.refusal import Refusal, not_http
from penstock.service.router.proxy.client import Answering, InboundConnection, RequestHandler
from penstock.service.router.proxy.incoming import Incoming


class RelayedSocket:
    """Between a client's frames and the requests they stand for, one under way at a time."""

    def __init__(self, handler: RequestHandler, request: Incoming, client: InboundConnection) -> None:
        """Raises Refusal where the handshake is none."""
        self._handler = handler
        self._client = client
        self._path = request.path
        self._headers = {name: request.headers[name] for name in frames.KEPT_HEADERS if name in request.headers}
        self._headers[b"content-type"] = b"application/json"
        self._protocol = ServerProtocol(max_size=handler.max_body_bytes)
        self._parts: list[bytes] = []
        """Of a message that comes in several frames."""
        self._pending: deque[tuple[dict[str, Any] | str, BodyAccount]] = deque()
        """Requests sent ahead, and the memory they take."""
        self._tenant = getattr(request.caller, "tenant", "")
        self._answer: SocketAnswer | None = None
        self._is_draining = False
        self._shake_hands(request)

    def _shake_hands(self, request: Incoming) -> None:
        lines = b"".join(b"%b: %b\r\n" % pair for pair in request.headers.items() if pair[0] != b"origin")
        self._protocol.receive_data(b"GET %b HTTP/1.1\r\n%b\r\n" % (request.target.encode("latin-1"), lines))
        events: list[Any] = self._protocol.events_received()
        response = self._protocol.accept(events[0]) if events else None
        if response is None or response.status_code != 101:
            raise not_http("this is no handshake of a WebSocket as RFC 6455 has it; mend it")
        response.headers.pop("Server", None)
        self._protocol.send_response(response)

    # What the connection calls

    def opened(self) -> None:
        self._flush()

    def receive(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        if self._protocol.state is not State.OPEN:
            self.on_client_gone()
        else:
            self._next()

    def drain(self) -> None:
        """No further request is taken; the answer under way goes on to its end."""
        self._is_draining = True
        self._forget()
        self._next()

    def on_client_gone(self) -> None:
        self._forget()
        self._give_up()

    def on_client_slow(self) -> None:
        if self._answer is not None and self._answer.answering is not None:
            self._answer.answering.on_client_slow()

    def on_client_ready(self) -> None:
        if self._answer is not None and self._answer.answering is not None:
            self._answer.answering.on_client_ready()

    # Requests

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        data, self._parts = b"".join(self._parts), []
        body = frames.body_of(data)
        if body == frames.CANCEL:
            if self._answer is not None:
                self._give_up()
                self.send(frames.CANCELLED)
        elif len(self._pending) >= frames.MAX_PENDING:
            self.on_client_gone()
            self._close(frames.POLICY, f"more than {frames.MAX_PENDING} requests were sent ahead")
        elif not self._is_draining:
            self._keep(body, len(data))

    def _keep(self, body: dict[str, Any] | str, num_bytes: int) -> None:
        account = BodyAccount(self._handler.bodies, self._tenant)
        try:
            account.add(num_bytes)
            self._pending.append((body, account))
        except Refusal as error:
            self.send(frames.whole_frame(error.status, dict(error.headers), error.body))

    def _forget(self) -> None:
        """Requests sent ahead are not answered any more."""
        while self._pending:
            self._pending.popleft()[1].close()

    def _next(self) -> None:
        while self._answer is None and self._pending and self._client.is_open:
            body, account = self._pending.popleft()
            if isinstance(body, str):
                account.close()
                self.send(frames.bad_frame(body))
                continue
            self._ask(frames.streamed(body), account)
        if self._is_draining and self._answer is None:
            self._close(frames.GOING_AWAY, "shutting down")

    def _ask(self, data: bytes, account: BodyAccount) -> None:
        self._answer = answer = SocketAnswer(self, account)
        request = Incoming("POST", self._path, "", self._headers, data, time.monotonic())
        try:
            request.caller = self._handler.check("POST", self._path, self._headers)
        except Refusal as error:
            self._handler.refuse(request, answer, error)
        else:
            self._handler.handle(request, answer)

    def _give_up(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.leave()

    # What an answer calls

    def send(self, *texts: bytes) -> None:
        if self._protocol.state is State.OPEN:
            for text in texts:
                self._protocol.send_text(text)
            self._flush()

    def over(self, answer: "SocketAnswer") -> None:
        if self._answer is answer:
            self._answer = None
            asyncio.get_running_loop().call_soon(
                self._next
            )  # an answer that ends at once must not nest in the one before

    @property
    def is_open(self) -> bool:
        return self._client.is_open

    def _close(self, code: int, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._flush()

    def _flush(self) -> None:
        data = self._protocol.data_to_send()
        if not self._client.is_open or self._client.transport.is_closing():
            return
        self._client.transport.write(b"".join(data))
        if b"" in data:  # both sides have said that it is over
            self._client.transport.close()


class SocketAnswer:
    """Takes the answer to one frame as a connection would, and sends it as frames."""

    def __init__(self, session: RelayedSocket, account: BodyAccount) -> None:
        self._session = session
        self._account = account
        self._is_left = False
        self._rest = b""
        self.answering: Answering | None = None

    @property
    def is_open(self) -> bool:
        return not self._is_left and self._session.is_open

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        named = dict(line.split(b": ", 1) for line in headers.split(b"\r\n") if line)
        with contextlib.suppress(msgspec.DecodeError):
            self._send(frames.whole_frame(status, named, body))
        self._finish()

    def begin(self, status: int, headers: bytes) -> None:
        """What was asked for is a stream: its events follow."""

    def write(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        self._send(*(frame for event in events for frame in frames.frames_in(event)))

    def end(self) -> None:
        self._finish()

    def leave(self) -> None:
        """The client no longer waits for the answer."""
        self._is_left = True
        answering, self.answering = self.answering, None
        self._account.close()
        if answering is not None:
            answering.on_client_gone()

    def _send(self, *texts: bytes) -> None:
        if not self._is_left:
            self._session.send(*texts)

    def _finish(self) -> None:
        self.answering = None
        self._account.close()
        self._session.over(self)
