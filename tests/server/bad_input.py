"""What tests of bad input share: bodies that are good, numbers that are not, and what every error must look like."""

import re
import socket
from typing import Any

import httpx

from penstock.service.server.app import ROUTES, Route
from tests.server.serving import Server, user

LEAKS = re.compile(r"0x[0-9a-f]{6,}|Traceback|/home/|/root/|/work/|site-packages|\.py\b|penstock-\w+/|test-key")
SLOW = ("/app/v1/events", "/app/v1/simulate", "/app/v1/plan", "/app/v1/bench", "/app/v1/machine", "/app/v1/blocks")
SLOW += ("/app/v1/profile",)
"""What goes on for ever, or for long: tested by themselves."""
ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/cache/sessions")
"""Of a server with adapters or tiers: tests/adapters and tests/engine/tiers have bad input for them."""
POSTS = [
    route
    for route in ROUTES
    if route.method == "POST"
    and route.body is not None
    and "{" not in route.path
    and route.path not in (*SLOW, *ADAPTERS)
]
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "/bills": {"taken": ["x"]},
    "/v1/chat/completions": {"messages": user("x"), "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [65]},
    "/app/v1/lint": {"settings": {}},
    "/app/v1/streams": {"bodies": [{"messages": user("x"), "max_tokens": 1}]},
    "/app/v1/calculators/{name}": {"inputs": {}},
    "/v1/messages": {"model": "default", "messages": user("x"), "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "default", "messages": user("x")},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/batches": {"input_file_id": "none", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "/v1/conversations": {},
    "/v1/conversations/{id}": {},
    "/v1/conversations/{id}/items": {"items": user("x")},
    "/api/chat": {"model": "default", "messages": user("x"), "options": {"num_predict": 1}},
    "/api/generate": {"model": "default", "prompt": "x", "options": {"num_predict": 1}},
    "/api/embed": {"model": "default", "input": "x"},
    "/api/embeddings": {"model": "default", "prompt": "x"},
    "/api/show": {"model": "default"},
    "/api/pull": {"model": "default"},
    "/api/delete": {"model": "default"},
}
NUMBERS: list[Any] = [
    *("NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, "-1", "0", "-0.0", "1e-45", "1e308"),
    *("2147483648", "9223372036854775808", "true", '"1"', "null", "[]", "{}", "1.5"),
]


def path_of(route: Route) -> str:
    return re.sub(r"\{\w+\}", "some-id", route.path.replace("{name:path}", "some/model"))


def check_reported(response: httpx.Response) -> None:
    """Every error is the object clients know, and says nothing of our insides."""
    assert response.headers["x-request-id"]
    if response.status_code >= 400:
        check_error(response.request.url.path, response.json())
        assert not LEAKS.search(response.text), response.text


def check_error(path: str, body: Any) -> None:
    """An error has the shape of the dialect that the path speaks."""
    if path.startswith("/api/"):
        assert set(body) == {"error"}
        assert isinstance(body["error"], str)
        return
    error = body["error"]
    assert isinstance(error["message"], str)
    if path.startswith("/v1/messages"):
        assert (set(body), set(error), body["type"]) == ({"type", "error", "request_id"}, {"type", "message"}, "error")
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str | None)


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
