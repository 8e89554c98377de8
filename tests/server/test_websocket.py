"""A WebSocket tells what the stream of the same request tells, behind the same keys, limits and drains."""

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.machine import PATIENCE_S, wait_until
from tests.server.serving import KEY, Server, serving, user

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": user("some words"), "max_tokens": 12, "seed": 1},
    "/v1/completions": {"prompt": "some words", "max_tokens": 12, "seed": 1, "n": 2},
    "/v1/messages": {"model": "default", "messages": user("some words"), "max_tokens": 12, "seed": 1},
    "/v1/responses": {"input": "some words", "max_output_tokens": 12, "seed": 1},
}
LAST = ("[DONE]", '"type":"message_stop"', '"type":"response.completed"', '"type":"response.incomplete"')


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(key=KEY) as running:
        yield running


def opened(server: Server, path: str, **headers: str) -> ClientConnection:
    return connect(
        server.url.replace("http", "ws") + path,
        additional_headers=server.headers | headers,
        proxy=None,
        close_timeout=5,
    )


def answer(socket: ClientConnection, body: Any) -> list[str]:
    socket.send(json.dumps(body))
    frames: list[str] = []
    while not frames or not (frames[-1] == "[DONE]" or any(mark in frames[-1] for mark in LAST)):
        frames.append(str(socket.recv(timeout=PATIENCE_S)))
        if frames[-1].startswith("{") and isinstance(json.loads(frames[-1]).get("status"), int):
            break
    return frames


def plain(path: str, frames: list[str]) -> list[Any]:
    """Without what differs every time."""
    moving = ("id", "created", "created_at", "completed_at", "item_id", "message")

    def less(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: less(each) for name, each in value.items() if name not in moving}
        return [less(each) for each in value] if isinstance(value, list) else value

    return [less(json.loads(frame)) if frame.startswith("{") else frame for frame in frames]


@pytest.mark.parametrize("path", BODIES)
def test_frames_are_the_events_of_the_stream(server: Server, path: str) -> None:
    body = BODIES[path]
    events = [
        line.removeprefix("data: ")
        for line in server.post(path, body | {"stream": True}).text.split("\n")
        if line.startswith("data: ")
    ]
    with opened(server, path) as socket:
        first, second = answer(socket, body), answer(socket, body)
    assert told(path, first) == told(path, second) == told(path, events)


def test_a_long_body_is_answered_as_a_short_one_is(server: Server) -> None:
    body = BODIES["/v1/completions"] | {"prompt": "some words " * 100}
    with opened(server, "/v1/completions") as socket:
        assert answer(socket, body)[-1] == "[DONE]"


def told(path: str, frames: list[str]) -> tuple[str, Any]:
    """All text of an answer, and how it ends: events of two answers may be cut at other places."""
    values = plain(path, frames)
    parts = []
    for value in values:
        for choice in value.get("choices", ()) if isinstance(value, dict) else ():
            parts.append((choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or ""))
        if isinstance(value, dict) and isinstance(value.get("delta"), str):
            parts.append((0, value["delta"]))
        elif isinstance(value, dict) and isinstance(value.get("delta"), dict):
            parts.append((0, value["delta"].get("text") or ""))
    text = "|".join("".join(words for at, words in parts if at == index) for index in (0, 1))
    assert len(text) > 3
    return text, type(values[-1])


def test_without_a_key_no_socket_opens_and_errors_are_frames(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws") + "/v1/chat/completions", proxy=None)
    assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as nowhere:
        opened(server, "/v1/models")
    assert nowhere.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as foreign:
        opened(server, "/v1/completions", Origin="http://elsewhere.example")
    assert foreign.value.response.status_code == 403
    with opened(server, "/v1/chat/completions") as socket:
        for wrong, status in (({"messages": []}, 400), ({"model": "nobody", "messages": user("x")}, 404), ([1], 400)):
            (frame,) = answer(socket, wrong)
            assert json.loads(frame)["status"] == status
            assert json.loads(frame)["error"]["message"]
        assert len(answer(socket, BODIES["/v1/chat/completions"])) > 2, "the socket goes on"


def test_an_answer_is_given_up_when_asked_and_when_the_client_leaves(server: Server) -> None:
    path, long = "/v1/chat/completions", {"messages": user("x"), "ignore_eos": True}
    with opened(server, path) as socket:
        socket.send(json.dumps(long))
        assert "choices" in json.loads(socket.recv(timeout=PATIENCE_S))
        socket.send('{"type": "cancel"}')
        while json.loads(socket.recv(timeout=PATIENCE_S)) != {"type": "cancelled"}:
            pass
        assert len(answer(socket, BODIES[path])) > 2
        socket.send(json.dumps(long))
        socket.recv(timeout=PATIENCE_S)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0.0)


def test_a_drain_lets_the_answer_end_and_then_the_socket() -> None:
    with serving() as server:
        with opened(server, "/v1/completions") as socket:
            socket.send(json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True}))
            socket.recv(timeout=PATIENCE_S)
            stopping = threading.Thread(target=server.stop, args=(signal.SIGTERM,))
            stopping.start()
            frames = []
            with contextlib.suppress(ConnectionClosed):
                while True:
                    frames.append(str(socket.recv(timeout=PATIENCE_S)))
            stopping.join(PATIENCE_S)
        assert frames[-1] == "[DONE]"
        assert server.process.returncode == 0
