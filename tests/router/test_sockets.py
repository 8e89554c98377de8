"""A WebSocket passes the router as its requests do: the same events, keys, limits, budgets, moves and drains."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import create_key, revoke_key
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.store.database import SqliteDatabase
from tests.machine import PATIENCE_S, wait_until
from tests.router.harness import ScriptedReplica, routed, telling
from tests.router.service import Service, service
from tests.router.test_relay import run
from tests.server.serving import KEY, user
from tests.server.test_websocket import BODIES, answer, told

LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair() -> Iterator[Service]:
    with service("--policy", "round-robin", "slow-start-s=0", "--api-key", KEY) as running:
        yield running


def opened(pair: Service, path: str, **headers: str) -> ClientConnection:
    keyed = {"Authorization": f"Bearer {KEY}"} | headers
    url = pair.url.replace("http", "ws") + path
    return connect(url, additional_headers=keyed, proxy=None, close_timeout=5)


def posted(pair: Service, path: str, body: dict) -> list[str]:
    with pair.http(headers={"Authorization": f"Bearer {KEY}"}) as http:
        lines = http.post(path, json=body | {"stream": True}).text.split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("path", BODIES)
def test_frames_are_the_events_of_the_stream(pair, path):
    with opened(pair, path) as socket:
        first, second = answer(socket, BODIES[path]), answer(socket, BODIES[path])
    assert told(path, first) == told(path, second) == told(path, posted(pair, path, BODIES[path]))


def test_without_a_key_no_socket_opens_and_errors_are_frames(pair):
    for path, headers, status in (
        ("/v1/chat/completions", {"Authorization": "Bearer nobody"}, 401),
        ("/v1/models", {}, 404),
        ("/v1/completions", {"Origin": "http://elsewhere.example"}, 403),
    ):
        with pytest.raises(InvalidStatus) as refused:
            opened(pair, path, **headers)
        assert refused.value.response.status_code == status
        assert b'"error"' in refused.value.response.body
    with opened(pair, "/v1/chat/completions") as socket:
        for wrong, status in (({"messages": []}, 400), ({"model": "nobody", "messages": user("x")}, 404), ([1], 400)):
            (frame,) = answer(socket, wrong)
            assert json.loads(frame)["status"] == status
            assert json.loads(frame)["error"]["message"]
        assert len(answer(socket, BODIES["/v1/chat/completions"])) > 2, "the socket goes on"


def test_an_answer_goes_on_at_another_replica_and_can_be_given_up(pair):
    path = "/v1/completions"
    want = told(path, posted(pair, path, LONG | {"seed": 5}))
    with opened(pair, path) as socket:
        socket.send(json.dumps(LONG | {"seed": 5}))
        frames = [str(socket.recv(timeout=PATIENCE_S))]
        for wire in pair.wires:
            wire.cut()
        while frames[-1] != "[DONE]":
            frames.append(str(socket.recv(timeout=PATIENCE_S)))
        assert told(path, frames) == want
        socket.send(json.dumps(LONG))
        socket.recv(timeout=PATIENCE_S)
        socket.send('{"type": "cancel"}')
        while json.loads(socket.recv(timeout=PATIENCE_S)) != {"type": "cancelled"}:
            pass
        assert len(answer(socket, BODIES[path])) > 2
        socket.send(json.dumps(LONG))
        socket.recv(timeout=PATIENCE_S)
    wait_until(lambda: all(server.metric("vllm:num_requests_running") == 0.0 for server in pair.servers))


def test_a_drain_lets_the_answer_end_and_then_the_socket():
    with (
        service(num_replicas=1) as single,
        connect(single.url.replace("http", "ws") + "/v1/completions", proxy=None) as idle,
    ):
        with connect(single.url.replace("http", "ws") + "/v1/completions", proxy=None) as socket:
            socket.send(json.dumps(LONG))
            frames = [str(socket.recv(timeout=PATIENCE_S))]
            single.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(ConnectionClosed):
                while True:
                    frames.append(str(socket.recv(timeout=PATIENCE_S)))
        assert socket.close_code == 1012
        assert frames[-1] == "[DONE]"
        with pytest.raises(ConnectionClosed):
            idle.recv(timeout=PATIENCE_S)
        assert single.process.wait(PATIENCE_S) == 0


def test_every_frame_is_held_to_the_tenant_s_limits_and_to_its_key_and_is_billed(tmp_path):
    async def law():
        database = SqliteDatabase(tmp_path / "gateway.db", [GATEWAY])
        key, record = create_key(database, name="", tenant="acme", now=0.0)
        settings = GatewaySettings(tiers={"default": {"requests_per_minute": 2}})
        gateway = Gateway(settings, database, 0.0)
        async with routed(ScriptedReplica("one", telling()), gateway=gateway) as router:
            headers = {"Authorization": f"Bearer {key}"}
            url = f"ws://127.0.0.1:{router.port}/v1/chat/completions"
            async with (
                asyncio.timeout(PATIENCE_S),
                connect_async(url, additional_headers=headers, proxy=None) as socket,
            ):

                async def asked() -> list[str]:
                    await socket.send(json.dumps({"model": "tiny", "messages": user("x"), "max_tokens": 8}))
                    frames = []
                    async for frame in socket:
                        frames.append(str(frame))
                        if frame == "[DONE]" or str(frame).startswith("{"):
                            return frames
                    return frames

                assert [(await asked())[-1] for _ in range(2)] == ["[DONE]", "[DONE]"]
                refused = json.loads((await asked())[-1])
                assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
                assert refused["retry_after"] >= 1
                revoke_key(database, record.key_id, 1.0)
                gateway.book.look(1.0)
                assert json.loads((await asked())[-1])["status"] == 401, "a key that is revoked opens nothing more"
            await router.until(lambda: not gateway.ledger.num_unwritten)
            assert sum(one.num_requests for one in usage_sums(database, ("tenant",))) == 2
        database.close()

    run(law)


def test_too_many_frames_ahead_end_the_socket_and_half_a_frame_harms_nobody():
    async def law():
        stuck = ScriptedReplica("one", telling(die_after=1, stall=True))
        async with routed(stuck) as router:
            url = f"ws://127.0.0.1:{router.port}/v1/chat/completions"
            async with asyncio.timeout(PATIENCE_S), connect_async(url, proxy=None) as socket:
                for _ in range(40):
                    with contextlib.suppress(ConnectionClosed):
                        await socket.send(json.dumps({"messages": user("x")}))
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await socket.recv()
                assert socket.close_code == 1008
            async with asyncio.timeout(PATIENCE_S), connect_async(url, proxy=None) as socket:
                socket.transport.write(b"\x81\xfe\xff")
                socket.transport.abort()
            await router.until(lambda: not router.app.num_open and not router.app.clients)
            assert router.app.bodies.num_bytes == 0
            stuck.released.set()

    run(law)
