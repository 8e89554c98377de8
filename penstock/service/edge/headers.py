"""A request's headers within bounds: how many, how long, and none that two readers could take differently."""

from penstock.service.edge.refusal import Refusal, not_http

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 << 10
HEADERS_S = 10.0
"""A request's headers must be complete this long after its first byte."""
KEEP_ALIVE_S = 75
"""How long a connection may be silent between two requests, or before the first."""
MAX_PIPELINED = 16
"""Requests that a client may send before it has read the answers to those before; one that sends more is cut off."""
MAX_UNWANTED_BYTES = 32 << 20
"""Of a body whose request has been answered: read, so that its client gets the answer, and no further."""
ONCE = frozenset((b"content-length", b"transfer-encoding", b"host", b"authorization", b"x-api-key"))
"""Sent twice, one reader takes the first and another the last."""


class HeaderTally:
    """Grows with every header that a parser reads; raises Refusal for the first that is too much."""

    __slots__ = ("count", "num_bytes", "values")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Another request begins."""
        self.values: dict[bytes, bytes] = {}
        """By name in lower case; of repeated ones the first counts."""
        self.count = self.num_bytes = 0

    def add(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.count += 1
        self.num_bytes += len(name) + len(value) + 4
        if self.num_bytes > MAX_HEADER_BYTES or self.count > MAX_HEADERS:
            raise too_long()
        if name not in self.values:
            self.values[name] = value
        elif name in ONCE:
            raise not_http(f"the header {name.decode()} came twice; send one")

    def check(self, version: str) -> None:
        """All of them are here. Raises Refusal where they say two things of one."""
        values = self.values
        if version == "1.0":
            if b"transfer-encoding" in values:
                raise not_http("HTTP/1.0 has no Transfer-Encoding; send Content-Length, or HTTP/1.1")
        elif version != "1.1":
            raise not_http("no other protocol than HTTP/1.1 is spoken here")
        elif b"host" not in values:
            raise not_http("a request has one Host header; send one")
        coding = values.get(b"transfer-encoding")
        if coding is not None and (b"content-length" in values or coding.lower().strip() != b"chunked"):
            raise not_http("the body's length is said in two ways; send one")


def too_long() -> Refusal:
    return Refusal(431, "the request has too many or too long headers; send fewer", code="headers_too_large")
