"""Nothing that is sent breaks anything. The cases come from the route table and the body types."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from penstock.service.server.app import Route
from tests.server.bad_input import GOOD_BODIES, NUMBERS, POSTS, check_reported, raw
from tests.server.serving import Server, chat_text, serving, user

# What is sent


def numeric_fields(body: type) -> list[str]:
    """Fields of a body whose type has a number in it."""
    found = []
    for field in msgspec.structs.fields(body):
        text = str(field.type)
        if re.search(r"\b(int|float)\b", text) and field.name not in ("tokens", "input", "prompt"):
            found.append(field.name)
    return found


BOUNDS = ("max_tokens", "max_output_tokens")
"""Without them an answer is as long as the context."""


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)
def test_no_number_breaks_anything(http: httpx.Client, route: Route) -> None:
    assert route.body is not None
    for name in numeric_fields(route.body):
        for number in NUMBERS:
            if name in BOUNDS and number == "null":
                continue  # an answer as long as the context: right, and slow
            good = {key: value for key, value in GOOD_BODIES[route.path].items() if key != name}
            for stream in (
                ("false", "true") if "stream" in {f.name for f in msgspec.structs.fields(route.body)} else ("false",)
            ):
                content = json.dumps(good)[:-1] + f', "stream": {stream}, "{name}": {number}}}'
                response = http.post(route.path, content=content)
                expected = (200, 400, 504) if name == "deadline_ms" else (200, 400)
                assert response.status_code in expected, (name, number, response.text)
                check_reported(response)


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
        # Without a bound an answer is as long as the context: right, and slow.
        values = (
            wrong[1:] if name in BOUNDS else wrong if name != "options" else [1, [], "x", [{}], {"num_predict": "x"}]
        )
        bodies += [json.dumps(good | {name: value}).encode() for value in values]
    for body in bodies:
        response = http.post(route.path, content=body, headers={"content-type": "application/json"})
        expected = {200, 400, 413} | ({404} if "model" in good or "input_file_id" in good else set())
        assert response.status_code in expected, (body[:80], response.text[:200])
        check_reported(response)


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
        response = http.post(path, json=body)
        assert response.status_code in (400, 413), (path, list(body))
        check_reported(response)


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


@pytest.mark.parametrize(("kind", "name"), [("text", "text"), ("input_text", "text"), ("refusal", "refusal")])
def test_a_part_has_its_words_where_its_type_says(server: Server, kind: str, name: str) -> None:
    def ask(part: dict[str, str]) -> Any:
        content = [{"type": "text", "text": "a"}, {"type": kind, **part}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "temperature": 0}
        return server.post("/v1/chat/completions", body)

    assert ask({name: "b"}).json()["choices"][0]["message"]["content"] == chat_text("ab", 3)
    response = ask({})
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[0].content[1].{name}")


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "__class__", "bos_token", "chat_template", "a b"])
def test_template_variables_cannot_reach_what_is_not_theirs(server: Server, name: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": user("x"), "chat_template_kwargs": {name: "y"}})
    assert response.status_code == 400
    check_reported(response)


def test_bodies_have_a_limit_that_is_kept_while_reading(server: Server) -> None:
    assert server.post("/tokenize", {"prompt": "x" * (17 << 20)}).status_code == 413

    def endless() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(300):
            yield b"x" * (64 << 10)

    with server.http() as http:
        assert http.post("/tokenize", content=endless()).json()["error"]["code"] == "context_length_exceeded"
        zipped = http.post("/tokenize", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert zipped.status_code == 415


@pytest.mark.slow
def test_nothing_depends_on_assertions() -> None:
    """The same under `python -O`, which leaves them out."""
    with serving(options=["-O"]) as optimized, optimized.http() as http:
        for route in POSTS:
            test_no_number_breaks_anything(http, route)
            test_no_body_breaks_anything(http, route)
        test_fan_out_is_refused_before_anything_is_made(http)


# HTTP itself


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
    """Those that have not begun are as welcome as those between two requests: browsers connect ahead."""
    host, port = server.url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30.0) for _ in range(300)]
    for client in sockets[0::4]:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: local")
    for client in sockets[2::4]:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(65536)
        client.sendall(b"\r\n")
    assert server.get("/livez").status_code == 200
    for client in sockets[::2]:
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        client.close()
    for client in sockets[1::2]:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.close()


def test_unknown_paths_and_methods_are_told_as_errors(http: httpx.Client) -> None:
    for method, path, status in [("GET", "/nope", 404), ("DELETE", "/v1/models", 405), ("GET", "/v1/completions", 405)]:
        response = http.request(method, path)
        assert response.status_code == status
        check_reported(response)
        if status == 405:
            assert response.headers["allow"]


def test_request_ids_are_echoed_if_they_are_ids(http: httpx.Client) -> None:
    assert http.get("/livez", headers={"x-request-id": "my-id:1"}).headers["x-request-id"] == "my-id:1"
    made = http.get("/livez", headers={"x-request-id": "a" * 200}).headers["x-request-id"]
    assert made.startswith("req_")
