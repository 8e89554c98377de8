"""Nobody gets in who should not, nothing that is sent breaks anything, and no answer tells how we are built.

The cases come from the route table and the body types: a new route or field is tested the day it is written.
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import openai
import pytest

from penstock.config import ServerConfig
from penstock.engine.client import IDLE
from penstock.server.admission import Admission
from penstock.server.app import ROUTES, Route
from penstock.server.faults import ApiError
from penstock.server.guard import PUBLIC_PATHS, Keys
from tests.server.serving import KEY, Server, chat_text, serving, user

LEAKS = re.compile(r"0x[0-9a-f]{6,}|Traceback|/home/|/root/|/work/|site-packages|\.py\b|penstock-\w+/|test-key")
POSTS = [route for route in ROUTES if route.method == "POST"]
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": user("x"), "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [65]},
}
NUMBERS: list[Any] = [
    *("NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, "-1", "0", "-0.0", "1e-45", "1e308"),
    *("2147483648", "9223372036854775808", "true", '"1"', "null", "[]", "{}", "1.5"),
]


def path_of(route: Route) -> str:
    return route.path.replace("{name:path}", "some/model")


def check_told(response: httpx.Response) -> None:
    """Every error is the object clients know, and says nothing of our insides."""
    assert response.headers["x-request-id"]
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert isinstance(error["code"], str | None)
        assert not LEAKS.search(response.text), response.text


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


# Keys


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_but_two_needs_a_key(locked: Server, route: Route) -> None:
    body = json.dumps(GOOD_BODIES.get(route.path, {}))
    with httpx.Client(base_url=locked.url) as stranger:
        for path in (path_of(route), *route.aliases):
            for headers in ({}, {"Authorization": "Bearer wrong-key"}, {"Authorization": KEY}, {"x-api-key": "no"}):
                response = stranger.request(route.method, path, content=body, headers=headers)
                assert response.status_code == (200 if path in PUBLIC_PATHS else 401), path
                check_told(response)
    with locked.http() as friend:
        response = friend.request(route.method, path_of(route), content=body)
        assert response.status_code == (404 if "{" in route.path else 200)
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
    keys = Keys(["first-key-of-all", "second-key"])
    assert keys.tenant_of(b"second-key") == "key-1"
    assert keys.tenant_of(b"second-ke") is None
    assert keys.tenant_of(b"") is None
    source = Path("penstock/server/guard.py")
    assert "compare_digest" in (Path(__file__).parents[2] / source).read_text()


def test_a_tenant_may_not_fill_the_queue() -> None:
    client = SimpleNamespace(streams=(), load=IDLE, facts=SimpleNamespace(max_waiting=6, max_sequences=4))
    admission = Admission(client, num_tenants=2)  # type: ignore[arg-type]
    for _ in range(5):
        admission.enter("greedy")
    with pytest.raises(ApiError) as caught:
        admission.enter("greedy")
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
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
    with serving("--allowed-origin", "https://app.example", "--record", str(tmp_path / "trace")) as running:
        headers = {"origin": "https://app.example"}
        response = running.post("/v1/completions", {"prompt": "secret words", "max_tokens": 3}, headers=headers)
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        with running.http() as http:
            assert http.options("/v1/completions", headers=headers).status_code == 200
        running.stop()
        line = json.loads((tmp_path / "trace").read_text())
        assert (line["input_length"], line["output_length"], line["outcome"]) == (12, 3, "length")
        assert len(line["hash_ids"]) == 1
        assert "secret" not in (tmp_path / "trace").read_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_an_open_door_needs_a_key(host: str) -> None:
    with pytest.raises(Exception, match="there is no key"):
        ServerConfig(host=host)
    assert ServerConfig(host=host, api_key=("long-enough-key",)).host == host


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


# What is sent


def numeric_fields(body: type) -> list[str]:
    """Fields of a body whose type has a number in it."""
    found = []
    for field in msgspec.structs.fields(body):
        text = str(field.type)
        if re.search(r"\b(int|float)\b", text) and field.name not in ("tokens", "input", "prompt"):
            found.append(field.name)
    return found


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)
def test_no_number_breaks_anything(http: httpx.Client, route: Route) -> None:
    assert route.body is not None
    for name in numeric_fields(route.body):
        for number in NUMBERS:
            if (name, number) == ("max_tokens", "null"):
                continue  # an answer as long as the context: right, and slow
            good = {key: value for key, value in GOOD_BODIES[route.path].items() if key != name}
            for stream in (
                ("false", "true") if "stream" in {f.name for f in msgspec.structs.fields(route.body)} else ("false",)
            ):
                content = json.dumps(good)[:-1] + f', "stream": {stream}, "{name}": {number}}}'
                response = http.post(route.path, content=content)
                expected = (200, 400, 504) if name == "deadline_ms" else (200, 400)
                assert response.status_code in expected, (name, number, response.text)
                check_told(response)


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)
def test_no_body_breaks_anything(http: httpx.Client, route: Route) -> None:
    bodies = [
        *(
            b"",
            b"{",
            b"null",
            b"[]",
            b"1",
            b'"x"',
            b"\xff\xfe",
            b"\x00",
            b'{"a":1,}',
            b"{'a':1}",
            b'{"model":"\\ud800"}',
        ),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"messages":' + b"[" * 50_000, b'{"a":' + b"9" * 100_000 + b"}"),
        json.dumps({f"key{number}": number for number in range(50_000)}).encode(),
    ]
    good = GOOD_BODIES[route.path]
    for name in good:
        wrong: list[Any] = [
            None,
            1,
            1.5,
            True,
            "",
            [],
            {},
            [[]],
            [{}],
            [None],
            "\x00",
            [1, "a"],
            -1,
            [-1],
            [2**31],
            [2**40],
        ]
        values = wrong[1:] if name == "max_tokens" else wrong
        bodies += [json.dumps(good | {name: value}).encode() for value in values]
    for body in bodies:
        response = http.post(route.path, content=body, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400), (body[:80], response.text[:200])
        check_told(response)


def test_fan_out_is_refused_before_anything_is_made(http: httpx.Client) -> None:
    chat, text = GOOD_BODIES["/v1/chat/completions"], GOOD_BODIES["/v1/completions"]
    bodies = [
        ("/v1/chat/completions", chat | {"n": 10**9}),
        ("/v1/chat/completions", chat | {"top_logprobs": 10**9, "logprobs": True}),
        ("/v1/chat/completions", chat | {"stop": ["a"] * 10**5}),
        ("/v1/chat/completions", chat | {"logit_bias": {str(number): 1 for number in range(10**5)}}),
        ("/v1/chat/completions", chat | {"messages": user("x") * 10_001}),
        ("/v1/completions", text | {"prompt": ["x"] * 10**5}),
        ("/v1/completions", text | {"best_of": 10**9}),
        ("/v1/completions", text | {"prompt": ["x"] * 20, "n": 128}),
        ("/v1/embeddings", {"input": ["x"] * 10**5}),
    ]
    for path, body in bodies:
        start_s = time.monotonic()
        response = http.post(path, json=body)
        assert response.status_code == 400, (path, list(body))
        assert time.monotonic() - start_s < 2.0
        check_told(response)


@pytest.mark.parametrize(
    "content",
    ["", " ", "\x00", "\ufeff", "<|im_end|>", "{{ 7*7 }}", "a" * 100, "🙂" * 30, "\u202e", "</s><s>[INST]", "\r\n\r\n"],
)
def test_odd_prompts_are_answered_like_any_other(server: Server, content: str) -> None:
    body = {"messages": user(content), "max_tokens": 3, "temperature": 0}
    response = server.post("/v1/chat/completions", body)
    assert response.json()["choices"][0]["message"]["content"] == chat_text(content, 3)


@pytest.mark.parametrize("part", ["image_url", "input_audio", "file", "video"])
def test_what_is_no_text_is_refused_and_nothing_is_fetched(server: Server, part: str) -> None:
    content = [{"type": part, part: {"url": "http://127.0.0.1:1/x"}}]
    response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "__class__", "bos_token", "chat_template", "a b"])
def test_template_variables_cannot_reach_what_is_not_theirs(server: Server, name: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": user("x"), "chat_template_kwargs": {name: "y"}})
    assert response.status_code == 400
    check_told(response)


def test_bodies_have_a_limit_that_is_kept_while_reading(server: Server) -> None:
    assert server.post("/tokenize", {"prompt": "x" * (17 << 20)}).status_code == 413

    def endless() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(300):
            yield b"x" * (64 << 10)

    with server.http() as http:
        assert http.post("/tokenize", content=endless()).status_code == 413
        zipped = http.post("/tokenize", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert zipped.status_code == 415


# HTTP itself


def raw(server: Server, data: bytes, timeout_s: float = 5.0) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as client:
        client.sendall(data)
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except TimeoutError:
            return answer
    return answer


def test_headers_have_limits(server: Server) -> None:
    many = "".join(f"x-{number}: 1\r\n" for number in range(101))
    assert b" 431 " in raw(
        server, f"GET /livez HTTP/1.1\r\nhost: localhost\r\n{many}connection: close\r\n\r\n".encode()
    )
    long = "x: " + "y" * 70_000
    assert b" 431 " in raw(server, f"GET /livez HTTP/1.1\r\nhost: localhost\r\n{long}\r\n\r\n".encode())


SMUGGLING = [
    b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /version HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"content-length: +5\r\n\r\nhello",
    b"content-length: 0x5\r\n\r\nhello",
    b"content-length: -1\r\n\r\n",
    b"content-length: 5, 5\r\n\r\nhello",
    b"content-length : 5\r\n\r\nhello",
    b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n5;x\n\r\nhello\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    b"x: a\r\n b\r\ncontent-length: 3\r\n\r\n{}x",
    b"bad header\r\n\r\n",
    b"x\x00y: 1\r\n\r\n",
]


@pytest.mark.parametrize("rest", SMUGGLING)
def test_an_ambiguous_request_is_one_refusal_and_no_second_request(server: Server, rest: bytes) -> None:
    answer = raw(server, b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n" + rest, timeout_s=1.0)
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer or int(answer.split()[1]) in (400, 413)


def test_what_is_no_http_is_refused(server: Server) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        os.urandom(200) + b"\r\n\r\n",
    ):
        answer = raw(server, data, timeout_s=1.0)
        assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert server.get("/livez").status_code == 200


@pytest.mark.slow
def test_clients_that_never_finish_their_headers_are_let_go(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30.0) for _ in range(300)]
    for client in sockets[::2]:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: local")
    start_s = time.monotonic()
    assert server.get("/livez").status_code == 200
    assert time.monotonic() - start_s < 1.0
    for client in sockets:
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        client.close()
    assert time.monotonic() - start_s < 15.0


def test_unknown_paths_and_methods_are_told_as_errors(http: httpx.Client) -> None:
    for method, path, status in [("GET", "/nope", 404), ("DELETE", "/v1/models", 405), ("GET", "/v1/completions", 405)]:
        response = http.request(method, path)
        assert response.status_code == status
        check_told(response)
        if status == 405:
            assert response.headers["allow"]


def test_request_ids_are_echoed_if_they_are_ids(http: httpx.Client) -> None:
    assert http.get("/livez", headers={"x-request-id": "my-id:1"}).headers["x-request-id"] == "my-id:1"
    made = http.get("/livez", headers={"x-request-id": "a" * 200}).headers["x-request-id"]
    assert made.startswith("req_")


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
    told = locked.errors.read_text() + locked.get("/metrics").text + locked.banner
    assert canary not in told
    assert KEY not in told
