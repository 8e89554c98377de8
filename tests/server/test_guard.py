"""Nobody gets in who should not, nothing that is sent breaks anything, and no answer tells how we are built.

The cases come from the route table and the body types: a new route or field is tested the day it is written.
"""

import asyncio
import gc
import json
import os
import re
import socket
import weakref
from pathlib import Path

import httpx
import openai
import pytest
from starlette.types import Message, Receive, Scope, Send

from penstock.service.config import ServerConfig
from penstock.service.edge.access import ApiKeys, is_public
from penstock.service.server.app import ROUTES, Route, dialect_of
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.faults import ApiError, ErrorKind
from penstock.service.server.http.guard import Guard
from tests.server.bad_input import GOOD_BODIES, SLOW, check_reported, path_of, raw
from tests.server.serving import KEY, Server, idle_client, serving, user

# Keys


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_but_the_public_ones_needs_a_key(locked: Server, route: Route) -> None:
    body = json.dumps(GOOD_BODIES.get(route.path, {}))
    with httpx.Client(base_url=locked.url) as stranger:
        for path in (path_of(route), *route.aliases):
            for headers in ({}, {"Authorization": "Bearer wrong-key"}, {"Authorization": KEY}, {"x-api-key": "no"}):
                response = stranger.request(route.method, path, content=body, headers=headers)
                assert response.status_code in ((200, 404) if is_public(path) else (401,)), path
                check_reported(response)
    if route.path in SLOW:
        return
    with locked.http() as friend:
        response = friend.request(route.method, path_of(route), content=body)
        assert response.status_code in (200, 400, 403, 404), response.text  # 403: known, and no admin
        anthropic = httpx.request(route.method, locked.url + path_of(route), content=body, headers={"x-api-key": KEY})
        assert anthropic.status_code == response.status_code


def test_the_openai_client_is_told_of_a_wrong_key(locked: Server) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong", max_retries=0).models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "//v1/models",
            "/v1//models",
            "/v1/models/",
            "/V1/models",
            "/v1/models;x",
            "/v1/./models",
            "/livez/../v1/models",
        ),
        *("/%2e%2e/v1/models", "/livez%2f..%2fv1%2fmodels", "/livez?x=/v1/models", "/livez/", "/v1\\models"),
        *("http://evil/v1/models", "http://localhost/livez/../v1/models", "/livez#/v1/models", "/livez%00", "*"),
    ],
)
def test_no_spelling_of_a_path_opens_it(locked: Server, path: str) -> None:
    for host in ("localhost", "127.0.0.1"):
        answer = raw(locked, f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        status = int(answer.split()[1])
        assert status in (400, 401, 404) or (status == 200 and b'"alive"' in answer)


def test_keys_are_compared_whole() -> None:
    keys = ApiKeys(["first-key-of-all", "second-key"])
    assert keys.tenant_of(b"second-key") == "key-1"
    assert keys.tenant_of(b"second-ke") is None
    assert keys.tenant_of(b"") is None
    source = Path("penstock/service/edge/access.py")
    assert "compare_digest" in (Path(__file__).parents[2] / source).read_text()


def test_a_tenant_may_not_fill_the_queue() -> None:
    admission = Admission(idle_client(max_waiting=6, max_sequences=4), num_tenants=2)
    for _ in range(5):
        admission.enter("greedy")
    with pytest.raises(ApiError) as caught:
        admission.enter("greedy")
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    headers = dict(caught.value.headers)
    assert (headers[b"x-ratelimit-limit-requests"], headers[b"x-ratelimit-remaining-requests"]) == (b"5", b"0")
    assert dict(admission.limits("modest"))[b"x-ratelimit-remaining-requests"] == b"5"
    for _ in range(5):
        admission.enter("modest")
    with pytest.raises(ApiError) as caught:
        admission.enter("third")
    assert caught.value.status == 503
    admission.leave("greedy")
    admission.enter("third")


def test_the_cache_of_one_key_is_not_shared_with_another(locked: Server) -> None:
    body = {"prompt": "a secret that is long enough to fill several blocks of the cache", "max_tokens": 1}
    cached = []
    for key in (KEY, KEY, "another-key-of-some-length"):
        answer = httpx.post(locked.url + "/v1/completions", json=body, headers={"x-api-key": key}).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] == 0


# Where a request comes from


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil", "localhost:80:80", "[::1"]
)
def test_only_our_own_names_are_answered(server: Server, host: str) -> None:
    answer = raw(server, f"GET /livez HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert int(answer.split()[1]) in (400, 403)


def test_pages_from_elsewhere_may_not_write(http: httpx.Client) -> None:
    body = GOOD_BODIES["/tokenize"]
    assert http.post("/tokenize", json=body, headers={"origin": "https://evil.example"}).status_code == 403
    own = str(http.base_url).rstrip("/")
    response = http.post("/tokenize", json=body, headers={"origin": own})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_an_allowed_page_may(tmp_path: Path) -> None:
    with serving("allowed-origin=https://app.example", "--record", str(tmp_path / "trace")) as running:
        headers = {"origin": "https://app.example"}
        response = running.post("/v1/completions", {"prompt": "secret words", "max_tokens": 3}, headers=headers)
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        with running.http() as http:
            assert http.options("/v1/completions", headers=headers).status_code == 200
        running.stop()
        line = json.loads((tmp_path / "trace").read_text())
        assert (line["input_length"], line["output_length"], line["outcome"]) == (12, 3, "length")
        assert (line["hash_ids"], line["block_size"]) == ([], 16)
        assert "secret" not in (tmp_path / "trace").read_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_an_open_door_needs_a_key(host: str) -> None:
    with pytest.raises(Exception, match="there is no key"):
        ServerConfig(host=host).check_keyed()
    ServerConfig(host=host, api_key=("long-enough-key",)).check_keyed()


def test_sockets_listen_to_this_machine_only(server: Server) -> None:
    inodes = set()
    for pid in (server.process.pid, server.engine_pid):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found = re.match(r"socket:\[(\d+)\]", os.readlink(link))
            inodes |= {found.group(1)} if found else set()
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].split(":")[0])
    assert listening == ["0100007F"]


# The line to the engine


def test_garbage_on_the_inner_sockets_harms_nobody(server: Server) -> None:
    pid = server.engine_pid
    folder = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")[-1]
    sockets = list(Path(folder).iterdir())
    assert len(sockets) == 2
    for path in sockets:
        for data in (os.urandom(65536), b"\xff" * 16, b"\x80\x04cos\nsystem\n(S'touch /tmp/x'\ntR.", b"\x01" * 9):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                try:
                    client.connect(str(path))
                    client.sendall(data)
                    client.recv(64)
                except OSError:
                    continue
    answer = server.post("/v1/completions", {"prompt": "still here", "max_tokens": 2})
    assert answer.status_code == 200
    assert server.engine_pid == pid


def test_logs_hold_no_secrets(locked: Server) -> None:
    canary = "canary-7f3a"
    with locked.http() as http:
        http.post("/v1/chat/completions", json={"messages": user(canary), "max_tokens": 1})
        http.post("/v1/chat/completions", json={"messages": user(canary), "n": 10**9})
        http.post("/v1/chat/completions", content=canary.encode())
    httpx.get(locked.url + "/v1/models", headers={"Authorization": f"Bearer {canary}"})
    reported = locked.errors.read_text() + locked.get("/metrics").text + locked.banner
    assert canary not in reported
    assert KEY not in reported


# What is left of a request


class Refused:
    """Stands for a body."""


def test_nothing_of_a_refused_request_stays_until_garbage_is_looked_for() -> None:
    bodies: list[weakref.ref[Refused]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = Refused()
        bodies.append(weakref.ref(body))
        try:
            raise ValueError("the cause")
        except ValueError as error:
            raise ApiError(ErrorKind.INVALID, f"{body} will not do") from error

    async def send(message: Message) -> None:
        pass

    async def session() -> None:
        guard = Guard(app, ServerConfig(), dialect_of, lambda *_: None, lambda *_: None)
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "http_version": "1.1"}
        await guard(scope, None, send)  # type: ignore[arg-type]

    gc.disable()
    try:
        asyncio.run(session())
        assert bodies[0]() is None
    finally:
        gc.enable()
