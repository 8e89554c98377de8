"""The gate every request passes: its id, its headers, where it comes from, its key; and how its errors are worded.

Decides on what the HTTP parser has read and on the path routes are matched by, never on a second reading of the URL.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from penstock.errors import PenstockError
from penstock.service import marks
from penstock.service.config import ServerConfig
from penstock.service.edge.access import HEALTH_PATHS, ROUTER, Access, ApiKeys
from penstock.service.edge.frames import SOCKET_PATHS
from penstock.service.edge.headers import HeaderTally
from penstock.service.edge.refusal import Refusal
from penstock.service.edge.stamp import TRUST_HEADER, RelayStamp, read_stamp
from penstock.service.server.dialect import Dialect
from penstock.service.server.http.answer import Json
from penstock.service.server.http.exchange import KEY, ServerExchange, exchange_of, relayed_by
from penstock.service.server.http.faults import ApiError, ErrorKind, error_of, failed, log_fault, not_found
from penstock.service.server.http.large import TENANT, BurstGate
from penstock.service.server.websocket.session import SocketSession, refuse

LOGGER = logging.getLogger(__name__)
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
KINDS = {kind.status: kind for kind in reversed(ErrorKind)}
"""Of refusals at the edge, by status."""

Scope = dict[str, Any]
OnResponse = Callable[[Scope, int], None]
DialectOf = Callable[[str, bool], Dialect]
"""The dialect of a path, given whether the client speaks of an Anthropic version."""
OnEnd = Callable[[Scope, int, float], None]
"""Told of every request that is over: its status, 0 if it had no answer, and when it began."""


class Guard:
    """An ASGI application around another."""

    def __init__(
        self, app: Any, config: ServerConfig, dialect_of: DialectOf, on_response: OnResponse, on_end: OnEnd
    ) -> None:
        self.state = State()
        """What handlers find as `request.app.state`."""
        self._app = app
        self.access = Access(config, ApiKeys(config.api_key, config.admin_key, config.router_key or ""))
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
        headers = dict(reversed(scope["headers"]))  # of repeated ones the first counts
        if scope["path"] not in HEALTH_PATHS:
            await self._burst.take(self._lane(headers))
        request_id = _request_id(headers)
        scope["app"] = self
        dialect = self._dialect_of(scope["path"], b"anthropic-version" in headers)
        exchange = scope[KEY] = ServerExchange(request_id.decode(), start_s, dialect)
        extra = self.access.cors(headers)
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
                if exchange.relayed is not None:
                    message["headers"].append((TRUST_HEADER, b"1"))
                self._on_response(scope, status)
            await send(message)

        exchange.send = report
        try:
            self._check(scope)
            await self._app(scope, receive, report)
        except ClientDisconnect:
            return  # it left while it was still sending
        except Exception as error:
            fault = exchange.fault = _fault(error, exchange.name)
            log_fault(fault, scope)
            if not status and scope["method"] == "OPTIONS" and fault.kind is ErrorKind.METHOD:
                await Json(b"", 200, list(fault.headers))(scope, receive, report)
            elif not status:
                code, body = dialect.error(fault, exchange.name)
                await Json(body, code, list(fault.headers))(scope, receive, report)
            elif is_stream:
                await send({"type": "http.response.body", "body": dialect.error_event(fault, exchange.name)})
        finally:
            if exchange.leave is not None:
                exchange.leave()
            self._on_end(scope, status, start_s)
            _let_go(exchange)

    def _lane(self, headers: dict[bytes, bytes]) -> str:
        """Whose turn a request takes: its tenant's, before anything of it is checked. Strangers share one."""
        tenant = self.access.holder(headers) or ""
        return self._stamped(tenant, read_stamp(headers.get(marks.RELAY_HEADER, b"")))

    def _stamped(self, tenant: str, stamp: RelayStamp | None) -> str:
        """For whom a router asks, where its stamp is believed."""
        is_believed = stamp is not None and stamp.tenant and (tenant == ROUTER or self.access.is_open)
        return f"{tenant}/{stamp.tenant}" if stamp is not None and is_believed else tenant

    async def _talk(self, scope: Scope, receive: Any, send: Any) -> None:
        """A WebSocket: opened to whoever might send a request here, which each of its frames then is."""
        try:
            self._check({**scope, "method": "POST"})
            if scope["path"] not in SOCKET_PATHS:
                raise not_found("no WebSocket is served on this path; see /docs")
        except Exception as error:
            fault = _fault(error, "websocket")
            status, body = self._dialect_of(scope["path"], False).error(fault, "")
            await refuse(scope, send, status, body, fault)
            return
        await SocketSession(self, scope, receive, send, lambda: bool(self.state.front.health.is_draining)).run()

    def _check(self, scope: Scope) -> None:
        tally = HeaderTally()
        for name, value in scope["headers"]:
            tally.add(name, value)
        tally.check(scope["http_version"])
        headers, method, path = tally.values, scope["method"], scope["path"]
        exchange = exchange_of(scope)
        self.access.check(method, headers)
        tenant = self.access.tenant(method, path, headers)
        stamp = read_stamp(headers.get(marks.RELAY_HEADER, b""))
        if stamp is not None and (tenant == ROUTER or self.access.is_open):
            exchange.relayed = relayed_by(stamp, headers)
        exchange.tenant = tenant = self._stamped(tenant, stamp)
        TENANT.set(tenant)
        exchange.is_admin = ApiKeys.is_admin(tenant)


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


def _request_id(headers: dict[bytes, bytes]) -> bytes:
    given = headers.get(b"x-request-id", b"")
    return given if _ID.fullmatch(given) else b"req_" + secrets.token_hex(12).encode()


def _let_go(exchange: ServerExchange) -> None:
    """What a request has in its exchange points back at it, its body included: it would stay until garbage is looked for."""
    fault, exchange.fault, exchange.send = exchange.fault, None, None
    while fault is not None:
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__


def _fault(error: Exception, name: str) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Refusal):
        kind = KINDS.get(error.status, ErrorKind.INVALID)
        return ApiError(kind, str(error), param=error.param, code=error.code, headers=error.headers)
    if isinstance(error, PenstockError):
        return error_of(error)
    if isinstance(error, HTTPException):
        return _unrouted(error)
    LOGGER.error("request %s failed", name, exc_info=error)
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
