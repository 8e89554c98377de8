"""The operator's API: replicas added, drained and removed while requests run. On a port and with a key of its own.

What clients can reach never gets here, and what is done here is written down.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.errors import PenstockError, StoreError
from penstock.service.edge.access import ApiKeys, key_of
from penstock.service.edge.bodies import BodiesInFlight
from penstock.service.edge.refusal import Refusal, no_key, not_found
from penstock.service.gateway.gateway import Gateway
from penstock.service.router.admin.desk import DeskCall, DeskRoute, find, read_body
from penstock.service.router.admin.page import PAGE, docs_page, document
from penstock.service.router.app import RouterApp
from penstock.service.router.fleet import LiveReplica
from penstock.service.router.proxy.client import InboundConnection
from penstock.service.router.proxy.incoming import AnswerSink, Incoming
from penstock.service.router.surface import replicas

LOGGER = logging.getLogger(__name__)
MAX_BODY_BYTES = 1 << 20
JSON_LINE = b"content-type: application/json\r\n"
DONE = b'{"status":"done"}'
Audit = Callable[[str, str], None]


class ReplicaBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    url: str


class AdminApi:
    """One per admin listener; `audit` receives every action and what it was about."""

    max_body_bytes = MAX_BODY_BYTES

    def __init__(self, app: RouterApp, key: str, audit: Audit | None = None) -> None:
        self._app = app
        self._gateway = app.gate.gateway if app.gate is not None else None
        self._keys = ApiKeys((key,))
        self.bodies = BodiesInFlight(4 * MAX_BODY_BYTES, has_tenants=False)
        self._audit = audit or _say
        self.clients: set[InboundConnection] = set()

    def close(self) -> None:
        for client in tuple(self.clients):
            client.abort()

    def check(self, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        """The page itself is no secret: it asks for the key."""
        if method == "GET" and path in ("/", "/docs"):
            return
        if self._keys.tenant_of(key_of(headers)) is None:
            raise no_key()

    def handle(self, request: Incoming, client: AnswerSink) -> None:
        if request.method == "GET" and request.path in ("/", "/docs"):
            page = PAGE if request.path == "/" else docs_page(self._app.version)
            client.respond(200, b"content-type: text/html; charset=utf-8\r\n", page)
            return
        words = tuple(unquote(word) for word in request.path.strip("/").split("/"))
        gateway, row = self._gateway, find(request.method, words)
        if row is not None and gateway is not None:
            self._app.run(self._serve_desk(request, client, gateway, *row))
            return
        try:
            client.respond(200, JSON_LINE, self._answer(request))
        except PenstockError as error:
            self.refuse(request, client, _refusal_of(error))

    def refuse(self, request: Incoming, client: AnswerSink, error: Refusal) -> None:
        client.respond(error.status, error.header_lines, error.body)

    async def _serve_desk(
        self, request: Incoming, client: AnswerSink, gateway: Gateway, route: DeskRoute, names: tuple[str, ...]
    ) -> None:
        """What needs the database, off the loop; every gateway of it takes notice within a second, this one at once."""
        try:
            by = tuple(word for one, word in parse_qsl(request.query or "") if one == "by")
            asked = DeskCall(gateway, names, read_body(route, request.body), by)
            value = await asyncio.to_thread(route.handler, asked)
            if route.is_noted:
                await asyncio.to_thread(gateway.book.look, time.time())
                about = " ".join(names) or getattr(asked.body, "tenant", "")
                self._audit(f"{route.method.lower()} {route.path.split('/')[1]}", about)
            data = DONE if value is None else msgspec.json.encode(value)
            if client.is_open:
                client.respond(200, JSON_LINE, data)
        except PenstockError as error:
            if client.is_open:
                self.refuse(request, client, _refusal_of(error))

    def _answer(self, request: Incoming) -> bytes:
        words = request.path.strip("/").split("/")
        match (request.method, *words):
            case ("GET", "openapi.json"):
                return msgspec.json.encode(document(self._app.version))
            case ("GET", "replicas"):
                return replicas(self._app)[2]
            case ("POST", "replicas"):
                self._add(request.body)
            case ("DELETE", "replicas", name):
                self._app.remove_replica(self._replica(name).name)
                self._audit("remove", name)
            case ("POST", "replicas", name, ("drain" | "undrain") as action):
                replica = self._replica(name)
                (self._app.fleet.drain if action == "drain" else self._app.fleet.undrain)(replica)
                self._audit(action, name)
            case ("POST", "replicas", name, "role", ("prefill" | "decode" | "both") as role):
                self._app.fleet.assign(self._replica(name), role)
                self._audit(f"role {role}", name)
            case _:
                raise not_found(
                    "the admin API has GET and POST /replicas, DELETE /replicas/NAME, POST .../drain, .../undrain and "
                    ".../role/prefill, decode or both; "
                    "with a gateway keys, budgets, rules, usage and audit too: GET /openapi.json lists all"
                )
        return DONE

    def _replica(self, name: str) -> LiveReplica:
        found = self._app.fleet.get(name)
        if found is None:
            raise not_found(f"there is no replica {name[:80]!r}")
        return found

    def _add(self, data: bytes) -> None:
        try:
            body = msgspec.json.decode(data, type=ReplicaBody)
        except msgspec.DecodeError as error:
            raise Refusal(400, f"send a name and a url: {error}", code="invalid_json") from None
        if not body.name.isascii() or not body.name.isprintable() or not 0 < len(body.name) <= 64 or "/" in body.name:
            raise Refusal(400, "a replica's name has 1 to 64 plain letters and no slash", param="name")
        self._app.add_replica(body.name, body.url)
        self._audit("add", f"{body.name} {body.url}")


def _refusal_of(error: PenstockError) -> Refusal:
    if isinstance(error, StoreError):
        return Refusal(503, "the database cannot be used now; try later", type="server_error")
    return error if isinstance(error, Refusal) else Refusal(400, str(error))


def _say(action: str, about: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    LOGGER.info("audit %s admin %s %s", stamp, action, about)
