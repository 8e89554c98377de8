"""Connections to one replica, or to an outside API, with what the router knows of who answers there."""

import ssl
from collections.abc import Callable

from penstock.service.upstream.connections import ConnectionPool
from penstock.service.upstream.endpoint import Endpoint


class ReplicaPool(ConnectionPool):
    def __init__(
        self, endpoint: Endpoint, *, key: str = "", model: str = "", tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """`key` is what the server asks for; `model` is put in place of any other name, if there is one."""
        super().__init__(endpoint, tls)
        authorization = b"authorization: Bearer %b\r\n" % key.encode("ascii", "replace") if key else b""
        self._lines = f" HTTP/1.1\r\nhost: {endpoint.authority}\r\n".encode() + authorization
        self.model = model
        self.is_ours = False
        """A server of ours answers there: it marks its streams for us."""
        self.keeps_tenants = False
        """It believes us for whom we ask, and keeps what it stores and caches apart by that."""

    def head(self, method: str, target: str) -> bytes:
        """How every request there begins; `target` is latin-1."""
        return f"{method} {self.endpoint.path}{target}".encode("latin-1") + self._lines

    def request(self, method: str, path: str, headers: bytes = b"", body: bytes | None = None) -> bytes:
        """A question of the router's own. `headers` are lines that each end in CRLF."""
        if body is not None:
            headers += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        return self.head(method, path) + headers + b"\r\n" + (body or b"")
