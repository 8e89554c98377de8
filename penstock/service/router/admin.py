"""The operator's API: replicas added, drained and removed while requests run. On a port and with a key of its own.

What clients can reach never gets here, and what is done here is written down.
"""

import sys
import time
from collections.abc import Callable

import msgspec

from penstock.errors import PenstockError
from penstock.service.router.access import PlainKeys, key_of, no_key
from penstock.service.router.app import RouterApp
from penstock.service.router.proxy.client import InboundConnection, Incoming
from penstock.service.router.proxy.faults import Refusal, not_found
from penstock.service.router.surface import replicas

MAX_BODY_BYTES = 1 << 20
Audit = Callable[[str, str], None]


class ReplicaBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    url: str


class AdminApi:
    """One per admin listener; `audit` receives every action and what it was about."""

    max_body_bytes = MAX_BODY_BYTES

    def __init__(self, app: RouterApp, key: str, audit: Audit | None = None) -> None:
        self._app = app
        self._keys = PlainKeys((key,))
        self._audit = audit or _say
        self._clients: set[InboundConnection] = set()

    def opened(self, client: InboundConnection) -> None:
        self._clients.add(client)

    def closed(self, client: InboundConnection) -> None:
        self._clients.discard(client)

    def close(self) -> None:
        for client in tuple(self._clients):
            client.abort()

    def handle(self, request: Incoming, client: InboundConnection) -> None:
        try:
            if self._keys.number(key_of(request)) is None:
                raise no_key()
            body = self._answer(request)
            client.respond(200, b"content-type: application/json\r\n", body)
        except Refusal as error:
            client.respond(error.status, error.header_lines, error.body)
        except PenstockError as error:
            refusal = Refusal(400, str(error))
            client.respond(refusal.status, refusal.header_lines, refusal.body)

    def _answer(self, request: Incoming) -> bytes:
        words = request.path.strip("/").split("/")
        match (request.method, *words):
            case ("GET", "replicas"):
                return replicas(self._app)[2]
            case ("POST", "replicas"):
                self._add(request.body)
            case ("DELETE", "replicas", name):
                if self._app.fleet.get(name) is None or self._app.remove_replica(name) is None:
                    raise not_found(f"there is no replica {name[:80]!r}")
                self._audit("remove", name)
            case ("POST", "replicas", name, ("drain" | "undrain") as action):
                replica = self._app.fleet.get(name)
                if replica is None:
                    raise not_found(f"there is no replica {name[:80]!r}")
                (self._app.fleet.drain if action == "drain" else self._app.fleet.undrain)(replica)
                self._audit(action, name)
            case _:
                raise not_found(
                    "the admin API has GET and POST /replicas, DELETE /replicas/NAME, POST .../drain and .../undrain"
                )
        return b'{"status":"done"}'

    def _add(self, data: bytes) -> None:
        try:
            body = msgspec.json.decode(data, type=ReplicaBody)
        except msgspec.DecodeError as error:
            raise Refusal(400, f"send a name and a url: {error}", code="invalid_json") from None
        if not body.name.isascii() or not body.name.isprintable() or not 0 < len(body.name) <= 64 or "/" in body.name:
            raise Refusal(400, "a replica's name has 1 to 64 plain letters and no slash", param="name")
        self._app.add_replica(body.name, body.url)
        self._audit("add", f"{body.name} {body.url}")


def _say(action: str, about: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"penstock: audit {stamp} admin {action} {about}", file=sys.stderr, flush=True)
