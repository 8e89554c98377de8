"""What the router answers itself: how it is, what is served behind it, a row a route; and the web app's files.

Of the app's questions, what looks into an engine (events, requests, its machine) is not passed on to a replica: behind the
router's one key every client would see the requests of all.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from penstock.metrics.exposition import CONTENT_TYPE
from penstock.service.config import RouterConfig
from penstock.service.router.fleet import LiveFleet, ReplicaState
from penstock.service.router.gate import Gate
from penstock.service.router.members import Members
from penstock.service.router.meters import RouterMeters
from penstock.service.router.proxy.incoming import Incoming
from penstock.service.webfiles import web_file

JSON = "application/json"
Answer = tuple[int, str, bytes]


class RouterFacts(Protocol):
    fleet: LiveFleet
    members: Members
    meters: RouterMeters
    config: RouterConfig
    version: str
    is_draining: bool
    has_tenants: bool
    gate: Gate | None


def live(app: RouterFacts) -> Answer:
    """The loop turns: restarting us would not mend a replica."""
    return 200, JSON, b'{"status":"alive"}'


def ready(app: RouterFacts) -> Answer:
    """At least one replica takes requests, and we do."""
    if app.is_draining:
        return 503, JSON, b'{"status":"draining"}'
    if any(one.state is ReplicaState.READY and not one.is_draining for one in app.fleet.own):
        return 200, JSON, b'{"status":"ready"}'
    return 503, JSON, b'{"status":"no replica is ready"}'


def version(app: RouterFacts) -> Answer:
    return 200, JSON, msgspec.json.encode({"version": app.version})


def metrics(app: RouterFacts) -> Answer:
    more = app.gate.gateway.metrics() if app.gate is not None else []
    return 200, CONTENT_TYPE, app.meters.render(more).encode()


def metrics_of_no_tenant(app: RouterFacts) -> Answer:
    """For a key that may not know who else is here."""
    return 200, CONTENT_TYPE, app.meters.render([]).encode()


def models(app: RouterFacts) -> Answer:
    names = dict.fromkeys((*app.fleet.models, *(app.gate.gateway.settings.models if app.gate is not None else ())))
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "penstock"} for name in names]
    return 200, JSON, msgspec.json.encode({"object": "list", "data": data})


TOLD = (
    *("name", "is_outside", "is_draining", "num_pending", "num_waiting", "kv_usage_fraction"),
    *("num_served", "num_failed", "first_byte_s", "role", "is_turning"),
)
"""Of a replica, as the fleet has it."""


def replicas(app: RouterFacts) -> Answer:
    """For dashboards: states and loads, and why requests went where; no addresses, which are the operator's alone."""
    found = [
        {name: getattr(one, name) for name in TOLD}
        | {
            "state": one.state.value,
            "models": one.models or (),
            "loaded": sorted(one.loaded),
            "is_breaker_closed": one.breaker.is_closed,
            "num_blocks_reported": len(one.prefixes),
            "num_prefilled": int(app.meters.handovers.value((("replica", one.name), ("outcome", "computed")))),
        }
        for one in app.fleet
    ]
    body = {
        "is_router": True,
        "policy": app.config.policy,
        "replicas": found,
        "choices": app.fleet.reasons.most_common(24),
        "handovers": [[dict(labels), value] for _, labels, value in app.meters.handover_choices.samples() if labels],
    }
    return 200, JSON, msgspec.json.encode(body)


OWN_ROUTES: Mapping[tuple[str, str], Callable[[RouterFacts], Answer]] = {
    ("GET", "/livez"): live,
    ("GET", "/readyz"): ready,
    ("GET", "/health"): ready,
    ("GET", "/metrics"): metrics,
    ("GET", "/version"): version,
    ("GET", "/v1/models"): models,
    ("GET", "/router/replicas"): replicas,
    ("GET", "/app/v1/fleet"): replicas,
}


def doubts(app: RouterFacts) -> list[str]:
    """What an operator should know once every replica has been looked at."""
    found = []
    if app.has_tenants:
        found += [
            f"replica {one.name} does not know this router's key: it stores nothing for your tenants and their streams cannot "
            "move; set one PENSTOCK_REPLICA_KEY there and here"
            for one, pool in app.members
            if one.state is ReplicaState.READY and not pool.keeps_tenants
        ]
    aliases = app.gate.gateway.settings.models if app.gate is not None else {}
    for name, alias in aliases.items():
        asked = [*alias.split, *([alias.cascade.first, alias.cascade.then] if alias.cascade is not None else [])]
        missing = [model for model in asked or [name] if not app.fleet.is_known(model)]
        found += [f"the model name {name!r} asks for {model!r}, which no replica serves" for model in missing]
    return found


FOLDER = "/assets/"
PATHS = ("/", "/icon.svg")
ASKED = ("about", "simulate", "plan", "blocks", "calculators", "advice", "lint", "quizzes")
"""Questions that any replica answers alike."""


def page_answer(request: Incoming) -> tuple[bytes, bytes] | None:
    """Header lines and body of a file of the app; None if that is not what is asked for."""
    path = request.path
    if request.method != "GET" or not (path in PATHS or path.startswith(FOLDER)):
        return None
    found = web_file(path, request.headers.get(b"accept", b""))
    if found is None:
        return None
    headers, body = found.answer(request.headers.get(b"accept-encoding", b""))
    return b"".join(b"%b: %b\r\n" % pair for pair in headers), body


def is_for_any_replica(path: str) -> bool:
    prefix, _, rest = path.partition("/app/v1/")
    return not prefix and rest.partition("/")[0] in ASKED
