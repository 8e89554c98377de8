"""A request as it was parsed: one reading of its path and headers, by which everything is decided and passed on."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes

import httptools

from penstock.service.edge.refusal import not_http

_PLAIN = "/-._~!$&'()*+,;=:@"
"""What a path holds unescaped; a percent sign begins anything else."""
_SAFE = re.compile(r"[\w/.~-]+", re.ASCII)
_EASY = re.compile(rb"(?:/\w[\w.~-]*)+")
"""A path that has no query, no escapes and no part that begins with a dot: nearly all."""
_ODD = re.compile(rb"[\x00-\x1f\x7f\\\\]|/(?:\.{0,2}/|\.{1,2}$)")
"""Parts that are empty or go up, and letters that no path needs."""


@dataclass(slots=True)
class Incoming:
    """A request as it was parsed. Header names are in lower case; of repeated ones the first counts. The connection that reads
    it fills in body, time and caller, who handles it the id; then nobody changes it.
    """

    method: str
    path: str
    """Without the query; escapes are read, once, and there are no dots to follow."""
    query: str
    headers: dict[bytes, bytes]
    body: bytes = b""
    arrival_s: float = 0.0
    caller: Any = None
    """What the handler's `check` said of it."""
    request_id: bytes = b""
    """What its answer is called by; empty until it is handled."""

    @property
    def target(self) -> str:
        """The path as it is written on the wire."""
        return self.path if _SAFE.fullmatch(self.path) else quote(self.path, safe=_PLAIN, encoding="latin-1")


class AnswerSink(Protocol):
    """Where the answer to a request goes: a connection, or what stands for one."""

    answering: Any
    """Who answers; told when the client is slow or gone."""

    @property
    def is_open(self) -> bool: ...

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """A whole answer. `headers` are lines that each end in CRLF."""

    def begin(self, status: int, headers: bytes) -> None:
        """An answer of unknown length: `write` follows, then `end`."""

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class PlainCaller(NamedTuple):
    """The holder of a key of the command line."""

    tenant: str
    """Empty where there is no key to tell callers apart by."""


NO_CALLER = PlainCaller("")


def target_of(url: bytes) -> tuple[str, str]:
    """Path and query. Raises Refusal for a path that another reader might take for another one."""
    if _EASY.fullmatch(url):
        return url.decode("ascii"), ""
    parsed = httptools.parse_url(url) if url[:1] == b"/" else None
    if parsed is None or parsed.path is None:
        raise not_http("the request's path is not one we read; begin it with /")
    path = unquote_to_bytes(parsed.path) if b"%" in parsed.path else parsed.path
    if _ODD.search(path):
        raise not_http("the request's path is not plain; leave out dots, empty parts and control characters")
    return path.decode("latin-1"), (parsed.query or b"").decode("latin-1")
