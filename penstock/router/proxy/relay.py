"""One request on its way: chosen, sent, relayed, and sent again when a replica fails.

Before the first byte has left for the client a request may go to another replica whole. After it, a stream of our own engines
goes on elsewhere: each part of it ends in a mark that lists the tokens it showed, and a replica that is handed these tokens
continues after them (`marks.py`). The client sees one answer. Callbacks only: no task is made for a request.
"""

import asyncio

from penstock import marks
from penstock.errors import CapacityError
from penstock.marks import TokenCount
from penstock.router.fleet import LiveReplica
from penstock.router.proxy.asked import usage_in
from penstock.router.proxy.client import InboundConnection, Incoming
from penstock.router.proxy.endpoint import ConnectionPool, Headers, UpstreamConnection
from penstock.router.proxy.faults import Refusal, unavailable
from penstock.router.proxy.host import RelayHost
from penstock.router.proxy.job import Job, RelayOutcome

MAX_TRIES = 3
MAX_WHOLE_BYTES = 4 << 20
"""Answers up to this size are held until they are whole, so that one cut short can be asked for again."""
BUSY = (429, 503)
"""The replica is fine and has no room: another may have."""
BROKEN = (500, 502, 504)
LEFT_OUT = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"upgrade",
        b"te",
        b"trailer",
        b"date",
        b"x-request-id",
    )
)


class Relay:
    """Ends in exactly one outcome, told to the app by `over`."""

    __slots__ = (
        "_app",
        "_connecting",
        "_connection",
        "_head",
        "_is_answered",
        "_is_held",
        "_is_over",
        "_is_relayable",
        "_is_slow",
        "_kept",
        "_num_kept",
        "_pool",
        "_rest",
        "_sent_s",
        "_shown",
        "_status",
        "client",
        "count",
        "first_byte_s",
        "has_begun",
        "job",
        "num_failovers",
        "replica",
        "tried",
    )

    def __init__(self, app: RelayHost, client: InboundConnection, job: Job) -> None:
        self._app = app
        self.client = client
        self.job = job
        self.replica: LiveReplica | None = None
        self.tried: list[str] = []
        self.num_failovers = 0
        self.has_begun = False
        """The client has been sent something."""
        self.count: TokenCount | None = None
        self.first_byte_s = 0.0
        self._pool: ConnectionPool | None = None
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_answered = self._is_held = self._is_over = self._is_relayable = self._is_slow = False
        self._status = 0
        self._head = b""
        self._kept: list[bytes] = []
        self._num_kept = 0
        self._rest = b""
        """Of a stream: what came after the last mark."""
        self._shown: list[bytes] = []
        """Marks of what the client has been sent."""
        self._sent_s = 0.0
        client.answering = self

    @property
    def request(self) -> Incoming:
        return self.job.request

    # Sending

    def start(self) -> None:
        """Choose a replica and send; wait where none takes requests."""
        try:
            replica, pool = self._app.choose(self)
        except CapacityError:
            self._app.park(self)
            return
        self.replica, self._pool = replica, pool
        self.tried.append(replica.name)
        self._sent_s = self._app.now()
        self._is_answered = False
        self._app.fleet.begin(replica, self.job.num_prompt, self._sent_s)
        connection = pool.idle()
        if connection is not None:
            self._send(connection)
        else:
            self._connecting = asyncio.ensure_future(self._connect(pool))

    async def _connect(self, pool: ConnectionPool) -> None:
        try:
            connection = await pool.connect()
        except OSError as error:
            self._connecting = None
            self._fail(f"cannot connect: {type(error).__name__}", is_gone=isinstance(error, ConnectionRefusedError))
            return
        self._connecting = None
        if self._is_over:
            pool.give_back(connection)
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        if self._pool is None:
            return
        self._connection = connection
        self._rest = b""
        self._kept.clear()
        self._num_kept = 0
        connection.send(self.job.data(self._pool, self._shown if self.has_begun else None), self)
        if self._is_slow:
            connection.transport.pause_reading()

    # What the replica's connection calls

    def on_head(self, status: int, headers: Headers) -> None:
        replica, now = self.replica, self._app.now()
        if replica is None:
            return
        self._status = status
        self._answered(now)
        if status in BUSY or status in BROKEN or (self.has_begun and status != 200):
            if self._try_elsewhere(status):
                return
            if self.has_begun:
                self._give_up("no replica could take the answer over; send the request again")
                return
            if self._ask_another_model(is_good=None if status in BUSY else False):
                return
        is_events = False
        self._is_relayable = False
        lines = []
        for name, value in headers:
            if name == b"content-type":
                is_events = value.startswith((b"text/event-stream", b"application/x-ndjson"))
            elif name == marks.RELAY_HEADER:
                self._is_relayable = True
                continue
            elif name == marks.USAGE_HEADER:
                self.count = marks.count_of(value)
                continue
            elif name in LEFT_OUT:
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        self._is_held = not is_events
        if not self.has_begun:
            self._head = b"".join(lines) + self._app.answer_headers(self)
            if is_events:
                self.has_begun = True
                self.client.begin(status, self._head)

    def on_part(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._is_held:
            self._hold(data)
        elif self._is_relayable:
            self._relay_marked(data)
        else:
            if b'"usage":{' in data:
                self.count = _usage_of_events(data) or self.count
            if self.job.strips_usage:
                data = self._without_counts(data)
            if data:
                self.client.write(data)

    def _hold(self, data: bytes) -> None:
        self._kept.append(data)
        self._num_kept += len(data)
        if self._num_kept > MAX_WHOLE_BYTES:
            self._is_held = False
            self.has_begun = True
            self.client.begin(self._status, self._head)
            self.client.write(b"".join(self._kept))
            self._kept.clear()

    def _without_counts(self, data: bytes) -> bytes:
        """Whole events but for those that hold counts alone, which another engine sent because we asked for them."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return b"".join(event + b"\n\n" for event in events if b'"choices":[]' not in event)

    def _relay_marked(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        shown, tokens, self._rest = marks.split(data)
        if tokens:
            self._shown.extend(tokens)
        if shown:
            self.client.write(shown)

    def on_end(self) -> None:
        self._connection = None
        if self._is_over:
            return
        if self._is_held:
            whole = b"".join(self._kept)
            if self.count is None and self._status == 200 and self._app.is_metered:
                self.count = usage_in(whole)
            body = self._app.judge(self, self._status, self._head, whole)
            if body is None:  # not good enough: a larger model is asked
                self._ask_again()
                return
            self._finish(RelayOutcome.ANSWERED)
            self.client.respond(self._status, self._head, body)
            return
        if self._is_relayable:
            end = marks.end_of(self._shown)
            if end is None:
                self._fail("the stream ended early")
                return
            self.count = end
        self._finish(RelayOutcome.ANSWERED)
        self.client.end()

    def on_broken(self, message: str) -> None:
        connection, self._connection = self._connection, None
        if self._is_over or self.replica is None or self._pool is None:
            return
        if connection is not None and connection.num_exchanges > 1 and not connection.has_begun:
            # It was closed while it lay idle: that says nothing of the replica.
            self._connecting = asyncio.ensure_future(self._connect(self._pool))
            return
        self._fail(message)

    def lose_replica(self, message: str) -> None:
        """Its replica is known to be gone, though the connection has not noticed."""
        if not self._is_over and self.replica is not None:
            self._let_go()
            self._fail(message)

    # When a replica fails

    def _fail(self, message: str, *, is_gone: bool = False) -> None:
        replica = self.replica
        if self._is_over or replica is None:
            return
        self._leave_replica(is_good=False)
        self._app.note_failure(replica, message, is_gone=is_gone)
        if self.has_begun and not (self._is_relayable and self.job.is_resumable):
            self._give_up("the replica that was answering is gone; send the request again")
            return
        if self.has_begun:
            self.num_failovers += 1
            self._app.meters.failovers.add()
            if self.num_failovers > self._app.config.max_failovers:
                self._give_up("the answer was cut off too often; send the request again")
                return
            self.tried = self.tried[-1:]
        elif len(self.tried) >= MAX_TRIES or not self._app.may_retry():
            self._give_up("the replicas failed on this request; send it again")
            return
        self.start()

    def _try_elsewhere(self, status: int) -> bool:
        """Another replica may do better. False where the answer has to be passed on as it is."""
        app = self._app
        others = [one for one in app.fleet.serving(self.job.model) if one.name not in self.tried]
        has_other = any(app.fleet.takes(one, app.now()) for one in others)
        if not self.has_begun and (not has_other or len(self.tried) >= MAX_TRIES or not app.may_retry()):
            return False
        self._let_go()
        self._leave_replica(is_good=None if status in BUSY else False)
        if self.has_begun:
            app.park(self)  # somebody is waiting in mid-sentence: until a replica has room again
        else:
            self.start()
        return True

    def _ask_another_model(self, is_good: bool | None) -> bool:
        """The model cannot answer: the next of the request's models may."""
        if self.has_begun or not self._app.fall_back(self):
            return False
        self._let_go()
        self._leave_replica(is_good)
        self._ask_again()
        return True

    def _ask_again(self) -> None:
        """Another model, whole."""
        self._leave_replica(is_good=True)
        self.tried.clear()
        self.count = None
        self.start()

    def _give_up(self, message: str) -> None:
        error = unavailable(message, 1, code="replica_failed")
        self.refuse(error, RelayOutcome.FAILED)

    def refuse(self, error: Refusal, outcome: RelayOutcome) -> None:
        """End it with an answer of ours."""
        if self._is_over or self._ask_another_model(is_good=None):
            return
        self._let_go()
        self._leave_replica(is_good=None)
        has_begun = self.has_begun
        self._finish(outcome)
        if has_begun:
            self.client.write(error.event)
            self.client.end()
        else:
            self.client.respond(error.status, error.header_lines + self._app.answer_headers(self), error.body)

    # What the client's connection calls

    def on_client_gone(self) -> None:
        if self._is_over:
            return
        self._let_go()
        self._leave_replica(is_good=None)
        self._finish(RelayOutcome.LEFT)

    def on_client_slow(self) -> None:
        self._is_slow = True
        if self._connection is not None:
            self._connection.transport.pause_reading()

    def on_client_ready(self) -> None:
        self._is_slow = False
        if self._connection is not None:
            self._connection.transport.resume_reading()

    # The books

    def _answered(self, now: float) -> None:
        if not self._is_answered and self.replica is not None:
            self._is_answered = True
            self._app.fleet.answer(self.replica, self.job.num_prompt, now - self._sent_s)
            if not self.first_byte_s:
                self.first_byte_s = now

    def _let_go(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leave_replica(self, is_good: bool | None) -> None:
        replica, self.replica = self.replica, None
        if replica is not None:
            waiting = 0 if self._is_answered else self.job.num_prompt
            self._app.fleet.end(replica, is_good, waiting, self._app.now())

    def finish_from_memory(self, status: int) -> None:
        """It was answered before: no replica is asked."""
        self._status = status
        self._finish(RelayOutcome.ANSWERED)

    def _finish(self, outcome: RelayOutcome) -> None:
        self._is_over = True
        is_good = None if 400 <= self._status < 500 else self._status < 500
        self._leave_replica(is_good if outcome is RelayOutcome.ANSWERED else None)
        self._app.over(self, outcome, self._status)

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def estimate(self) -> TokenCount:
        """What it took where nobody said: all of the prompt once it was answered, and the tokens shown."""
        if not self.first_byte_s or self._status >= 400:
            return TokenCount()
        return TokenCount(self.job.num_prompt, sum(map(len, marks.tokens_of(self._shown).values())), 0)


def _usage_of_events(data: bytes) -> TokenCount | None:
    """From an event of an engine that writes counts into its stream."""
    for line in reversed(data.split(b"\n")):
        if b'"usage":{' in line:
            return usage_in(line.removeprefix(b"data: "))
    return None
