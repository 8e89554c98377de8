"""Who sent a request, as its headers and the exchange say."""

from starlette.requests import Request

from penstock.service.server.generation import Caller
from penstock.service.server.http.connection import exchange_of
from penstock.service.server.http.faults import invalid
from penstock.service.server.http.relay import relayed_of

DEADLINE_HEADER = "x-request-timeout-ms"


def tenant_of(request: Request) -> str:
    """Whose request it is: what is kept and cached is kept apart by it. Of a router's request, whose the router says."""
    return str(exchange_of(request.scope).tenant)


def caller_of(request: Request) -> Caller:
    relayed = relayed_of(request)
    return Caller(
        tenant=tenant_of(request),
        most=relayed.most if relayed is not None else None,
        account=relayed.account if relayed is not None else "",
        deadline_ms=_deadline_ms(request.headers.get(DEADLINE_HEADER)),
        request_id=exchange_of(request.scope).name,
    )


def _deadline_ms(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        deadline_ms = float(header)
    except ValueError:
        deadline_ms = -1.0
    if not 0.0 < deadline_ms <= 86_400_000.0:
        raise invalid(f"{DEADLINE_HEADER} must be a number of milliseconds above 0, at most a day", DEADLINE_HEADER)
    return deadline_ms
