"""A request as the router handles it: what was asked, for whom, and the bytes a replica is sent."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.service import kv_events, marks
from penstock.service.edge.stamp import RelayStamp
from penstock.service.marks import TokenCount
from penstock.service.router.policy import RouteChoice, RoutedCall
from penstock.service.router.proxy.asked import Wanted, replaced
from penstock.service.router.proxy.incoming import Incoming
from penstock.service.router.proxy.replica_pool import ReplicaPool

PROMPT_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"))
"""Whose prompts are in their bodies: nothing that one replica keeps is needed to compute them."""
PASSED_HEADERS = (
    b"content-type",
    b"accept",
    b"traceparent",
    b"tracestate",
    b"anthropic-version",
    b"anthropic-beta",
    b"x-request-timeout-ms",
    b"last-event-id",
)
"""What of a client's headers a replica sees; nothing else does, so none can steer it."""


class RelayOutcome(Enum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    """No replica could answer."""
    REFUSED = "refused"
    """There was no replica to ask."""
    LEFT = "left"
    """Its client went away."""


@dataclass(slots=True, eq=False)
class Job:
    """What stays the same from replica to replica, and the model that is asked for now."""

    request: Incoming
    relay_key: bytes
    """Unlike any other's: ids and seeds of the answer follow from it, so that they are the same on every replica."""
    wanted: Wanted
    call: RoutedCall
    model: str
    """By the name that replicas know; empty for whatever they serve."""
    created: int
    ticket: Any = None
    """What the gateway gave."""
    next_models: tuple[str, ...] = ()
    """Asked in turn if this one cannot answer."""
    choice: RouteChoice | None = None
    """Of the replica asked last."""
    is_kept: bool = False
    """A replica keeps what it answers, under ids that it says."""
    holder: str = ""
    """The replica that keeps what the request is about; empty for whichever."""
    is_searched: bool = False
    """Some replica keeps what it is about, and we do not know which."""
    trace: Any = None
    """Its span, where spans are sent to somebody."""
    traceparent: bytes = b""
    """Under which the next replica's span goes; the client's own if there is none."""
    num_enlarged: int = 0
    """Times that more money was set aside for it."""
    cache_key: bytes = b""
    """Where its answer is kept, if it may be given again."""
    extra: dict[str, object] = field(default_factory=dict)
    """Fields set in the body on the way."""
    strips_usage: bool = False
    """Counts are asked of engines that do not mark their streams, and kept from the client, who did not."""
    is_trial: bool = False
    """A first answer of a cascade: judged before it is shown."""
    peer: bytes = b""
    """Where the replica asked now may fetch blocks of the prompt."""
    prefill: Any = None
    """The prompt being computed for it elsewhere."""
    spent: list[tuple[str, TokenCount]] = field(default_factory=list)
    """What models asked before took."""

    @property
    def is_resumable(self) -> bool:
        return self.request.method == "POST"

    def body(self, pool: ReplicaPool) -> bytes:
        fields = dict(self.extra)
        model = pool.model or self.model
        if self.strips_usage and not pool.is_ours:
            fields["stream_options"] = {"include_usage": True}
        if model and model != self.wanted.model:
            fields["model"] = model
        return replaced(self.request.body, fields) if fields and self.request.body else self.request.body

    def data(self, pool: ReplicaPool, shown: list[bytes] | None, query: str | None = None) -> bytes:
        """The request on the wire. `shown`: marks of what the client has seen, where the answer goes on; `query` in place
        of the client's own.
        """
        request = self.request
        query = request.query if query is None else query
        headers = request.headers
        if self.traceparent:
            headers = headers | {b"traceparent": self.traceparent}
        lines = [b"%b: %b\r\n" % (name, headers[name]) for name in PASSED_HEADERS if name in headers]
        body = self.body(pool)
        if not pool.model:  # one of ours, or one that takes no notice
            stamp, billing = self._stamp(), self._billing()
            lines.append(b"x-request-id: %b\r\n%b: %b\r\n%b" % (request.request_id, marks.RELAY_HEADER, stamp, billing))
            if self.peer:
                lines.append(b"%b: %b\r\n" % (kv_events.PEER_HEADER, self.peer))
            if shown:
                prefix = marks.resumed(shown)
                lines.append(b"%b: %d\r\n" % (marks.RESUME_HEADER, len(prefix)))
                body = prefix + body
        if body or request.method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        target = request.target if not query else f"{request.target}?{query}"
        return b"".join((pool.head(request.method, target), *lines, b"\r\n", body))

    def asking(self, pool: ReplicaPool, header: bytes) -> bytes:
        """The same request, of which only this is wanted: the blocks its prompt is made of, or that they are computed."""
        head, end, body = self.data(pool, None).partition(b"\r\n\r\n")
        return head + b"\r\n%b: 1" % header + end + body

    def _billing(self) -> bytes:
        """Who pays, and for how many tokens at most."""
        ticket = self.ticket
        if ticket is None or ticket.ask.is_free:
            return b""
        most = ticket.most
        line = b"%b: %b\r\n" % (marks.ACCOUNT_HEADER, ticket.account.encode())
        return line if most is None else line + b"%b: %d %d\r\n" % (marks.MOST_HEADER, *most)

    @property
    def tenant(self) -> str:
        """Whose request it is; empty where nobody is told apart."""
        return getattr(self.request.caller, "tenant", "")

    def _stamp(self) -> bytes:
        priority = self.ticket.meter.tier.priority if self.ticket is not None else 0
        return RelayStamp(self.relay_key, self.created, self.tenant, priority).encode()
