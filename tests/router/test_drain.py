"""A router that shuts down answers what it has taken, wherever on its way that is, and refuses what it has not taken yet."""

import asyncio
import json
import socket

import pytest

from tests.machine import PATIENCE_S
from tests.router.harness import Routed, ScriptedReplica, read_answer, routed, whole
from tests.router.test_gateway_http import foreign, said, saying
from tests.router.test_guardrails import guarded
from tests.router.test_relay import run

LARGE = json.dumps({"choices": [], "text": "x" * (3 << 20)}).encode()


async def draining(router: Routed) -> "asyncio.Task[int]":
    drain = asyncio.create_task(router.app.drain(PATIENCE_S))
    await router.until(lambda: router.app.is_draining)
    for _ in range(10):
        await asyncio.sleep(0.02)  # as often as it looks
    return drain


@pytest.mark.parametrize("stage", ["before", "after"])
def test_what_is_being_judged_is_answered(tmp_path, stage):
    async def law():
        async with guarded(tmp_path, foreign("nice", saying("good")), stages=(stage,)) as (judge, _, router, asked):
            judge.released.clear()
            answer = asyncio.create_task(asked("nice"))
            await router.until(lambda: bool(judge.asked))
            drain = await draining(router)
            assert not drain.done()
            judge.released.set()
            assert await drain == 0
            assert said(await answer) == "good"

    run(law)


def test_an_answer_is_read_to_its_end(tmp_path):
    async def large(replica, headers, body, writer):
        writer.write(whole(LARGE))

    async def law():
        async with routed(ScriptedReplica("a", large)) as router:
            with socket.create_connection(("127.0.0.1", router.port)) as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                await router.until(lambda: bool(router.connections) and router.connections[0].is_open)
                sending = router.connections[0].transport.get_extra_info("socket")
                sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
                own.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
                await router.until(lambda: bool(router.replicas[0].asked) and router.connections[0].is_idle)
                drain = await draining(router)
                assert not drain.done()
                reader, writer = await asyncio.open_connection(sock=own)
                assert (await reader.read()).endswith(LARGE)
                assert await drain == 0
                writer.close()

    run(law)


def test_a_request_whose_body_is_still_coming_is_refused(tmp_path):
    async def law():
        async with routed(ScriptedReplica("a")) as router:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{")
            await router.until(lambda: bool(router.connections) and router.connections[0].num_received > 0)
            drain = await draining(router)
            status, _, body = await read_answer(reader)
            assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
            writer.close()
            assert await drain == 0

    run(law)
