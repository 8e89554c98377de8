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
        if key:
            self._lines += b"authorization: Bearer %b\r\n" % key.encode("ascii", "replace")
        self.model = model
        self.is_ours = False
        """A server of ours answers there: it marks its streams for us."""
        self.keeps_tenants = False
        """It believes us for whom we ask, and keeps what it stores and caches apart by that."""
