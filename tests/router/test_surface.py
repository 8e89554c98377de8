"""Whatever the server's own table has passes the router: every route, in every dialect, whole, streamed and resumed."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from penstock.service.edge.refusal import Refusal, no_key, unavailable
from penstock.service.kv_events import EVENTS_PATH
from penstock.service.router.surface import OWN_ROUTES, is_for_any_replica
from penstock.service.server.app import ROUTES, Route, dialect_of
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.guard import KINDS
from tests.router.service import Service, service
from tests.server.bad_input import GOOD_BODIES, SLOW, check_reported, path_of
from tests.server.serving import user

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STORY = {"max_tokens": 60, "temperature": 0, "stream": True}
STREAMS = {
    "/v1/chat/completions": {"messages": user("a story"), **STORY},
    "/chat/completions": {"messages": user("a story"), **STORY},
    "/v1/completions": {"prompt": "a story", **STORY},
    "/v1/messages": {"model": "default", "messages": user("a story"), **STORY},
    "/v1/responses": {"input": "a story", "max_output_tokens": 60, "temperature": 0, "stream": True},
    "/api/chat": {"model": "default", "messages": user("a story"), "options": {"num_predict": 60, "temperature": 0}},
    "/api/generate": {"model": "default", "prompt": "a story", "options": {"num_predict": 60, "temperature": 0}},
}
"""Every route of the table that can stream; Ollama's do unless told otherwise."""
LEFT_OUT = (EVENTS_PATH, "/bills")
"""What one server tells its router."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Service]:
    with service("--policy", "round-robin", "slow-start-s=0") as running:
        yield running


def passes(route: Route) -> bool:
    """The web app's looks into one engine and its cache stay there: behind a router every client would see those of all."""
    is_page = route.path.startswith(("/app/v1/", "/cache/")) and not is_for_any_replica(route.path)
    return route.path not in LEFT_OUT and not is_page and route.path not in SLOW


def num_failed(running: Service) -> float:
    with running.http() as http:
        replicas = http.get("/router/replicas").json()["replicas"]
    assert all(replica["is_breaker_closed"] for replica in replicas)
    return sum(replica["num_failed"] for replica in replicas)


@pytest.mark.parametrize("route", list(filter(passes, ROUTES)), ids=lambda route: f"{route.method} {route.path}")
def test_every_route_of_a_server_passes_the_router(pair: Service, route: Route) -> None:
    body = json.dumps(GOOD_BODIES.get(route.path, {}))
    before = num_failed(pair)
    with pair.http() as http, pair.servers[0].http() as direct:
        for path in (path_of(route), *(alias.replace("{name:path}", "some/model") for alias in route.aliases)):
            here, there = (
                http.request(route.method, path, content=body),
                direct.request(route.method, path, content=body),
            )
            assert here.status_code == there.status_code, (path, here.text)
            if (route.method, route.path) not in OWN_ROUTES and not path.startswith("/assets/"):
                kinds = [answer.headers.get("content-type", "").partition(";")[0] for answer in (here, there)]
                assert kinds[0] == kinds[1], path
            check_reported(here)
    assert num_failed(pair) == before, "a client's fault is no replica's"


def spoken(http: httpx.Client, path: str, body: dict, cut_after: int = 10**9, wires=()) -> tuple[str, list[dict]]:
    """What a stream says, and its events; the way to the replica that answers is cut after so many of them."""
    found: list[dict] = []
    with http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        is_lines = answer.headers["content-type"].startswith("application/x-ndjson")
        name = answer.headers["x-penstock-route"].partition(";")[0]
        for line in answer.iter_lines():
            assert not line.startswith((":t", ":u")), "marks are the router's alone"
            if not line or line.startswith((":", "event:")) or line == "data: [DONE]":
                assert not (is_lines and line), "a line that is no object"
                continue
            found.append(json.loads(line if is_lines else line.removeprefix("data: ")))
            if len(found) == cut_after:
                dict(zip(("r0", "r1"), wires))[name].cut()
    return "".join(map(_words, found)), found


def _words(event: dict) -> str:
    if "choices" in event:
        return "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in event["choices"])
    if "message" in event and "done" in event:
        return event["message"]["content"]
    if "done" in event:
        return event["response"]
    delta = event.get("delta")
    return delta if isinstance(delta, str) else (delta or {}).get("text", "")


def _texts(value: object) -> Iterator[str]:
    """Every text of an answer, however deep."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(part)


@pytest.mark.parametrize("path", STREAMS)
def test_every_stream_passes_and_outlives_its_replica(pair: Service, path: str) -> None:
    with pair.http() as http:
        before = num_failed(pair)
        calm, _ = spoken(http, path, STREAMS[path])
        assert len(calm) >= 50
        assert num_failed(pair) == before
        moved = pair.metric("penstock_router_failovers_total")
        stormy, events = spoken(http, path, STREAMS[path], 8, pair.wires)
        assert stormy == calm
        assert pair.metric("penstock_router_failovers_total") == moved + 1
        ids = {event["id"] for event in events if "choices" in event}
        assert len(ids) <= 1
        whole = http.post(path, json=STREAMS[path] | {"stream": False})
        assert whole.status_code == 200
        assert calm in set(_texts(whole.json()))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_router_and_server_word_refusals_alike(path: str) -> None:
    for refusal in (no_key(), unavailable("no room", 1), Refusal(403, "no"), Refusal(413, "less", code="large")):
        refusal.type = "permission_error" if refusal.status == 403 else refusal.type
        error = ApiError(KINDS[refusal.status], str(refusal), code=refusal.code, param=refusal.param)
        dialect = dialect_of(path, False)
        assert refusal.worded(path, b"r") == dialect.error(error, "r")
        assert refusal.event(path, b"r") == dialect.error_event(error, "r")


def test_the_table_of_streams_is_whole() -> None:
    """Every route whose body says `stream` is streamed here."""
    streaming = {
        route.path
        for route in ROUTES
        if route.body is not None
        and "stream" in route.body.__struct_fields__
        and not re.match("/app/|/api/(pull|show|delete)", route.path)
    }
    assert streaming <= set(STREAMS)
