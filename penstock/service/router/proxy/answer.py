"""A replica's answer as it comes: what of it the client may see, and when. Pure; knows no connection.

An answer that is no stream is held until it is whole, so that one cut short can be asked for again. A stream of our engines is
shown up to its last mark; one of another engine as it comes.
"""

from dataclasses import InitVar, dataclass, field

import msgspec

from penstock.service import marks
from penstock.service.edge.stamp import TRUST_HEADER
from penstock.service.marks import TokenBound, TokenCount
from penstock.service.router.proxy.asked import usage_in
from penstock.service.upstream.connections import Headers

MAX_WHOLE_BYTES = 4 << 20
"""Answers up to this size are held until they are whole."""
STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson")
_OF_A_HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade", b"te", b"trailer")
_OF_ROUTERS = (marks.LOST_HEADER, marks.MOST_HEADER, marks.RELAY_HEADER, marks.USAGE_HEADER, TRUST_HEADER)
LEFT_OUT = frozenset((*_OF_A_HOP, *_OF_ROUTERS, b"date", b"x-request-id"))
"""What of a replica's headers a client does not see: a connection's own, what replicas tell routers, what we say."""


ANSWER_TYPES = (b"application/json", *STREAM_TYPES)
FIRST_WORDS = {STREAM_TYPES[0]: (b"data:", b"event:", b":", b"id:", b"retry:"), STREAM_TYPES[1]: (b"{",)}
"""How the first event of a stream begins, by its kind."""
NAMES = {
    "/v1/chat/completions": b'"choices"',
    "/v1/completions": b'"choices"',
    "/v1/embeddings": b'"data"',
    "/v1/messages": b'"content"',
    "/v1/responses": b'"id"',
    "/api/chat": b'"message"',
    "/api/generate": b'"response"',
}
"""What every whole answer to a path names."""


class _Object(msgspec.Struct):
    """Any, of which nothing is kept."""


_an_object = msgspec.json.Decoder(_Object)


@dataclass(slots=True)
class ReplicaAnswer:
    """Of one replica."""

    status: int
    headers: InitVar[Headers]
    _strips_usage: bool
    """Counts were asked for by us and are kept from the client, who did not ask."""
    is_metered: InitVar[bool]
    """Limits are the gateway's, and what a replica says of its own is nobody's business."""
    count: TokenCount | None = None
    """Tokens it took, by its own account."""
    needs: TokenBound | None = None
    """Tokens that it may take, where fewer were allowed."""
    is_stream: bool = False
    is_marked: bool = False
    is_lost: bool = False
    is_held: bool = True
    lines: bytes = b""
    """Headers that are passed on."""
    marks: list[bytes] = field(default_factory=list)
    """Since the last look at them."""
    _kind: bytes = b""
    _kept: list[bytes] = field(default_factory=list)
    _num_kept: int = 0
    _rest: bytes = b""
    """Of a stream: what came after the last mark, or after the last event."""

    def __post_init__(self, headers: Headers, is_metered: bool) -> None:
        said = dict(headers)
        self._kind = said.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.is_stream = self._kind in STREAM_TYPES
        self.is_held = not self.is_stream
        self.is_marked = marks.RELAY_HEADER in said
        self.is_lost = marks.LOST_HEADER in said
        if marks.USAGE_HEADER in said:
            self.count = marks.count_of(said[marks.USAGE_HEADER])
        if marks.MOST_HEADER in said:
            self.needs = marks.bound_of(said[marks.MOST_HEADER])
        passed = [pair for pair in headers if pair[0] not in LEFT_OUT]
        if is_metered:
            passed = [pair for pair in passed if not pair[0].startswith(b"x-ratelimit-")]
        self.lines = b"".join([b"%b: %b\r\n" % pair for pair in passed])

    def is_of_kind(self, method: str) -> bool:
        """What a server of models can answer; a page in its place is somebody else's."""
        return self.status != 200 or method != "POST" or self._kind in ANSWER_TYPES

    def begins_well(self, shown: bytes) -> bool:
        """The first that is shown of a stream is an event of it."""
        return not self.is_stream or shown.startswith(FIRST_WORDS[self._kind])

    def is_whole(self, method: str, path: str, body: bytes) -> bool:
        """An object that says what such an answer says."""
        if self.status != 200 or method != "POST" or self._kind != ANSWER_TYPES[0]:
            return True
        try:
            _an_object.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return False
        return NAMES.get(path, b"") in body

    def part(self, data: bytes) -> bytes:
        """What may be shown now. A held answer that grows too long is held no longer."""
        if self.is_held:
            self._kept.append(data)
            self._num_kept += len(data)
            if self._num_kept <= MAX_WHOLE_BYTES:
                return b""
            self.is_held = False
            return self.whole()
        if self.is_marked:
            shown, self.marks, self._rest = marks.split(self._rest + data if self._rest else data)
            return shown
        if b'"usage":{' in data:
            self.count = _usage_of_events(data) or self.count
        return self._without_counts(data) if self._strips_usage else data

    def whole(self) -> bytes:
        kept, self._kept = self._kept, []
        return b"".join(kept)

    def rest(self) -> bytes:
        """What is left of a stream that has ended, where it was not marked."""
        return b"" if self.is_marked else self._rest

    def _without_counts(self, data: bytes) -> bytes:
        """Whole events but for those that hold counts alone."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return b"".join(event + b"\n\n" for event in events if b'"choices":[]' not in event)


def _usage_of_events(data: bytes) -> TokenCount | None:
    """From an event of an engine that writes counts into its stream."""
    for line in reversed(data.split(b"\n")):
        if b'"usage":{' in line:
            return usage_in(line.removeprefix(b"data: "))
    return None
