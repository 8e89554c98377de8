"""One try of a request at one replica: its connection, and what the fleet's books say of it. Knows nothing of other tries."""

import asyncio
import errno
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.service.router.fleet import LiveReplica
from penstock.service.router.proxy.host import RelayHost
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.connections import Headers, UpstreamConnection


class AttemptListener(Protocol):
    """The caller of the attempt. After `on_failed` and `on_end` nothing more comes from it."""

    def on_head(self, attempt: "Attempt", status: int, headers: Headers) -> None: ...

    def on_part(self, data: bytes) -> None: ...

    def on_end(self, attempt: "Attempt") -> None: ...

    def on_failed(self, attempt: "Attempt", message: str, is_gone: bool) -> None:
        """No answer, or not all of it; `is_gone`: no server listens there."""


@dataclass(slots=True, eq=False)
class Attempt:
    """Between its making and `leave` the replica counts it as pending."""

    _listener: AttemptListener
    _host: RelayHost
    replica: LiveReplica
    _num_tokens: int
    pool: ReplicaPool = field(init=False)
    trace: Any = None
    """Its span, where spans are sent to somebody."""
    has_answered: bool = False
    """The head of an answer is there."""
    is_left: bool = False
    is_own_fault: bool = False
    """It failed here, for want of sockets or memory: that says nothing of the replica."""
    network_s: float | None = None
    """Of the time to the head of the answer, what the replica did not account for."""
    sent_s: float = 0.0
    _data: bytes = b""
    _connection: UpstreamConnection | None = None
    _connecting: asyncio.Task[None] | None = None
    _is_paused: bool = False

    def __post_init__(self) -> None:
        self.pool = self._host.members.pool(self.replica)
        self.sent_s = self._host.now()
        self._host.fleet.begin(self.replica, self._num_tokens, self.sent_s)

    def send(self, data: bytes) -> None:
        self._data = data
        connection = self.pool.idle()
        if connection is not None:
            self._use(connection)
        else:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            connection = await self.pool.connect()
        except OSError as error:
            self._connecting = None
            message = f"cannot connect: {type(error).__name__}"
            self.is_own_fault = error.errno in OWN_FAULTS
            self._listener.on_failed(self, message, isinstance(error, ConnectionRefusedError))
            return
        self._connecting = None
        if self.is_left:
            self.pool.give_back(connection)
        else:
            self._use(connection)

    def _use(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.send(self._data, self)
        if self._is_paused:
            connection.transport.pause_reading()

    # What the connection calls

    def on_head(self, status: int, headers: Headers) -> None:
        if self.is_left:
            return
        self.replica.heard_s = self.replica.moved_s = now = self._host.now()
        if not self.has_answered:
            self.has_answered = True
            waited_s = now - self.sent_s
            self._host.fleet.answer(self.replica, self._num_tokens, waited_s)
            server_s = _server_s(headers)
            self.network_s = None if server_s is None else max(waited_s - server_s, 0.0)
            if self.trace is not None:
                self.trace.answered(status, self.network_s, now)
        self._listener.on_head(self, status, headers)

    def on_part(self, data: bytes) -> None:
        if not self.is_left:
            self.replica.heard_s = self.replica.moved_s = self._host.now()
            self._listener.on_part(data)

    def on_end(self) -> None:
        self._connection = None
        if not self.is_left:
            self._listener.on_end(self)

    def on_broken(self, message: str) -> None:
        connection, self._connection = self._connection, None
        if self.is_left:
            return
        if connection is not None and connection.num_exchanges > 1 and not connection.has_begun:
            # It was closed while it lay idle: that says nothing of the replica.
            self._connecting = asyncio.ensure_future(self._connect())
            return
        self._listener.on_failed(self, message, False)

    # What the listener calls

    def pause(self) -> None:
        self._is_paused = True
        if self._connection is not None:
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.transport.resume_reading()

    def leave(self, is_good: bool | None) -> None:
        """It is over, by whatever end; `is_good` is None where that says nothing of the replica. Once or more."""
        if self.is_left:
            return
        self.is_left = True
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.is_own_fault:
            is_good = None
        waiting = 0 if self.has_answered else self._num_tokens
        now = self._host.now()
        self._host.fleet.end(self.replica, is_good, waiting, now)
        if self.trace is not None:
            self.trace.end(is_good, now)


OWN_FAULTS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
_DURATION = re.compile(rb";dur=([0-9.]+)")


def _server_s(headers: Headers) -> float | None:
    """What the replica says it took until the head of its answer."""
    for name, value in headers:
        if name == b"server-timing":
            try:
                return sum(map(float, _DURATION.findall(value))) / 1000
            except ValueError:
                return None
    return None
