"""The gate every request passes: its id, its headers, where it comes from, its key; and how its errors are worded.

Decides on what the HTTP parser has read and on the path routes are matched by, never on a second reading of the URL.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from penstock.config import ServerConfig, is_loopback
from penstock.errors import PenstockError
from penstock.service.server.dialect import Dialect
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import ApiError, ErrorKind, error_of, failed, invalid, log_fault
from penstock.service.server.websocket.session import PATHS, Session, refuse

LOGGER = logging.getLogger(__name__)
PUBLIC_PATHS = ("/livez", "/readyz", "/health", "/", "/icon.svg")
"""What may be asked without a key: whether we live, and the page that asks for one."""
PUBLIC_FOLDER = "/assets/"
HEALTH_PATHS = ("/livez", "/readyz", "/health")
MAX_BEGUN = 4
"""Requests that begin in one turn: half a millisecond, or ten with texts as long as are tokenized on the loop."""
MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 << 10
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")

Scope = dict[str, Any]
OnResponse = Callable[[Scope, int], None]
DialectOf = Callable[[str, bool], Dialect]
"""The dialect of a path, given whether the client speaks of an Anthropic version."""
OnEnd = Callable[[Scope, int, float], None]
"""Told of every request that is over: its status, 0 if it had no answer, and when it began."""


class ApiKeys:
    """Keys are kept as digests and compared in constant time, all of them every time."""

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        named = [
            *((f"key-{n}", key) for n, key in enumerate(keys)),
            *((f"admin-{n}", k) for n, k in enumerate(admin_keys)),
        ]
        self._digests = [(name, hashlib.sha256(key.encode()).digest()) for name, key in named]

    def __bool__(self) -> bool:
        return bool(self._digests)

    @staticmethod
    def is_admin(tenant: str) -> bool:
        return tenant.startswith("admin-")

    def tenant_of(self, key: bytes) -> str | None:
        """A name for whoever holds the key that says nothing of the key itself."""
        given = hashlib.sha256(key).digest()
        found = None
        for name, digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = name
        return found


class BurstGate:
    """A burst of requests begins over several turns of the event loop, in order, so that nobody else waits for all of it."""

    def __init__(self, most: int = MAX_BEGUN) -> None:
        self._most = most
        self._num_begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return in this turn if fewer than `most` have begun in it, else in one of the next."""
        loop = asyncio.get_running_loop()
        if not self._num_begun:
            loop.call_soon(self._renew)
        if self._num_begun < self._most:
            self._num_begun += 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _renew(self) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < self._most:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else given up
                waiter.set_result(None)
                self._num_begun += 1
        if self._num_begun:
            asyncio.get_running_loop().call_soon(self._renew)


class Guard:
    """An ASGI application around another."""

    def __init__(
        self, app: Any, config: ServerConfig, dialect_of: DialectOf, on_response: OnResponse, on_end: OnEnd
    ) -> None:
        self.state = State()
        """What handlers find as `request.app.state`."""
        self._app = app
        self._keys = ApiKeys(config.api_key, config.admin_key)
        self._hosts = {host.lower() for host in (*OWN_HOSTS, config.host, *config.allowed_host)}
        self._checks_host = is_loopback(config.host) or bool(config.allowed_host)
        self._origins = {origin.lower().rstrip("/") for origin in config.allowed_origin}
        self._dialect_of = dialect_of
        self._on_response = on_response
        self._on_end = on_end
        self._burst = BurstGate()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._talk(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        if scope["path"] not in HEALTH_PATHS:
            await self._burst.take()
        headers = _Headers(scope["headers"])
        request_id = _request_id(headers)
        scope["penstock.request_id"] = request_id
        scope["penstock.start_s"] = start_s
        scope["app"] = self
        dialect = self._dialect_of(scope["path"], bool(headers.get(b"anthropic-version")))
        scope["penstock.dialect"] = dialect
        extra = self._cors(headers)
        if scope.get("http_version") == "1.0":
            send = WholeBody(send)
        status = 0
        is_stream = False

        async def report(message: Any) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                if status:
                    return  # begun already, while its model was being loaded
                status = message["status"]
                spent_ms = round((time.monotonic() - start_s) * 1000)
                is_stream = any(pair in message["headers"] for pair in dialect.stream_headers[:1])
                message["headers"] = [*message["headers"], *extra, *dialect.headers(request_id, spent_ms)]
                self._on_response(scope, status)
            await send(message)

        scope["penstock.send"] = report
        try:
            self._check(scope, headers)
            await self._app(scope, receive, report)
        except ClientDisconnect:
            return  # it left while it was still sending
        except Exception as error:
            fault = scope["penstock.fault"] = _fault(error, request_id)
            log_fault(fault, scope)
            if not status and scope["method"] == "OPTIONS" and fault.kind is ErrorKind.METHOD:
                await Json(b"", 200, list(fault.headers))(scope, receive, report)
            elif not status:
                code, body = dialect.error(fault, request_id.decode())
                await Json(body, code, list(fault.headers))(scope, receive, report)
            elif is_stream:
                await send({"type": "http.response.body", "body": dialect.error_event(fault, request_id.decode())})
        finally:
            leave = scope.get("penstock.leave")
            if leave is not None:
                leave()
            self._on_end(scope, status, start_s)
            _let_go(scope)

    async def _talk(self, scope: Scope, receive: Any, send: Any) -> None:
        """A WebSocket: opened to whoever might send a request here, which each of its frames then is."""
        headers = _Headers(scope["headers"])
        try:
            self._check({**scope, "method": "POST"}, headers)
            if scope["path"] not in PATHS:
                raise ApiError(ErrorKind.NOT_FOUND, "no WebSocket is served on this path; see /docs", code="not_found")
        except ApiError as error:
            status, body = self._dialect_of(scope["path"], False).error(error, "")
            await refuse(scope, send, status, body, error)
            return
        await Session(self, scope, receive, send, lambda: bool(self.state.front.is_draining)).run()

    def _check(self, scope: Scope, headers: "_Headers") -> None:
        is_old = scope.get("http_version") == "1.0"
        if headers.num_hosts > 1 or (not headers.num_hosts and not is_old):
            raise invalid("a request has one Host header; send one", code="invalid_http")
        if is_old and headers.get(b"transfer-encoding"):
            raise invalid("HTTP/1.0 has no Transfer-Encoding; send Content-Length, or HTTP/1.1", code="invalid_http")
        if headers.num_bytes > MAX_HEADER_BYTES or headers.count > MAX_HEADERS:
            raise ApiError(
                ErrorKind.HEADERS, "the request has too many or too long headers; send fewer", code="headers_too_large"
            )
        if self._checks_host and headers.num_hosts and _host_name(headers.get(b"host")) not in self._hosts:
            raise ApiError(
                ErrorKind.PERMISSION,
                "this host name is not allowed; allow it with --allowed-host",
                code="host_not_allowed",
            )
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and not self._is_known_origin(headers):
            raise ApiError(
                ErrorKind.PERMISSION,
                "pages of this origin may not call us; allow it with --allowed-origin",
                code="origin_not_allowed",
            )
        if self._keys and not is_public(scope["path"]) and scope["method"] != "OPTIONS":
            self._check_key(scope, headers)

    def _check_key(self, scope: Scope, headers: "_Headers") -> None:
        scheme, _, key = headers.get(b"authorization").partition(b" ")
        key = key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")
        tenant = self._keys.tenant_of(key)
        if tenant is None:
            raise ApiError(
                ErrorKind.AUTHENTICATION,
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        scope["penstock.tenant"] = tenant
        scope["penstock.is_admin"] = self._keys.is_admin(tenant)

    def _is_known_origin(self, headers: "_Headers") -> bool:
        """No browser is asking, or the page is ours, or the operator allowed it."""
        origin = headers.get(b"origin").decode("latin-1").lower().rstrip("/")
        if not origin:
            return True
        host = headers.get(b"host").decode("latin-1").lower()
        return origin in self._origins or origin in (f"http://{host}", f"https://{host}")

    def _cors(self, headers: "_Headers") -> list[tuple[bytes, bytes]]:
        origin = headers.get(b"origin")
        if not origin or origin.decode("latin-1").lower().rstrip("/") not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id"),
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-expose-headers", b"x-request-id, retry-after, server-timing"),
            (b"vary", b"origin"),
        ]


class WholeBody:
    """Sends an answer to a client of HTTP/1.0, which knows no parts: all of it at the end, with its length."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        self._parts: list[bytes] = []

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._parts)
        kept = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        headers = [*kept, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        await self._send(self._start | {"headers": headers})
        await self._send({"type": "http.response.body", "body": body})


class _Headers:
    """The first value of each header, and how much there is of all."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, bytes] = {}
        self.count = self.num_bytes = self.num_hosts = 0
        for name, value in pairs:
            self.num_hosts += name == b"host"
            self._values.setdefault(name, value)
            self.count += 1
            self.num_bytes += len(name) + len(value) + 4

    def get(self, name: bytes) -> bytes:
        return self._values.get(name, b"")


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def _request_id(headers: _Headers) -> bytes:
    given = headers.get(b"x-request-id")
    return given if _ID.fullmatch(given) else b"req_" + secrets.token_hex(12).encode()


def _host_name(host: bytes) -> str:
    """Without the port. What is no host name at all comes back as it is and is known to nobody."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdecimal() and not (name.startswith("[") and not name.endswith("]")) else text


def _let_go(scope: Scope) -> None:
    """What a request has in its scope points back at it, its body included: it would stay until garbage is looked for."""
    scope.pop("penstock.send", None)
    fault = scope.pop("penstock.fault", None)
    while fault is not None:
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__


def _fault(error: Exception, request_id: bytes) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PenstockError):
        return error_of(error)
    if isinstance(error, HTTPException):
        return _unrouted(error)
    LOGGER.error("request %s failed", request_id.decode(), exc_info=error)
    return failed()


def _unrouted(error: HTTPException) -> ApiError:
    """A path or method that is not there."""
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    if error.status_code == HTTPStatus.NOT_FOUND:
        return ApiError(ErrorKind.NOT_FOUND, "there is no such path; see /docs", code="not_found", headers=headers)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = "this path does not take that method; see /docs"
        return ApiError(ErrorKind.METHOD, message, code="method_not_allowed", headers=headers)
    return ApiError(ErrorKind.INVALID, "the request cannot be served", headers=headers)
