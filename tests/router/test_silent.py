"""Replicas that hang, lie or are not there: answers move, nothing wrong is passed on, and what is free is asked at once."""

import asyncio
import json
import os
import signal
import socket
import time

import pytest

from penstock.service.router.fleet import QUIET_S, SILENT_S
from penstock.service.router.surface import doubts
from tests.router.harness import ScriptedReplica, answer, chunk, head, routed, telling, whole
from tests.router.service import service
from tests.router.test_gateway_http import behind_gateway, foreign, said, saying
from tests.router.test_relay import BODY, run
from tests.router.test_surface import STREAMS, spoken


def page(status: int = 200):
    async def handler(replica, headers, body, writer):
        text = b"<html>welcome</html>"
        writer.write(head(status, content_type="text/html", content_length=str(len(text))) + b"\r\n" + text)

    return handler


async def no_object(replica, headers, body, writer):
    writer.write(whole(b"welcome"))


async def other_object(replica, headers, body, writer):
    writer.write(whole(b'{"status": "fine"}'))


async def no_events(replica, headers, body, writer):
    writer.write(head(content_type="text/event-stream", transfer_encoding="chunked") + b"\r\n")
    writer.write(chunk(b"welcome") + b"0\r\n\r\n")


async def silent_stream(replica, headers, body, writer):
    writer.write(head(content_type="text/event-stream", transfer_encoding="chunked") + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "lie", [page(), no_object, other_object, no_events, silent_stream], ids=lambda lie: lie.__name__
)
@pytest.mark.parametrize("policy", ["least-pending", "predicted-latency", "prefix-predicted"])
def test_a_replica_that_answers_rubbish_answers_nobody(lie, policy):
    async def law():
        liar, good = ScriptedReplica("liar", lie), ScriptedReplica("good", answer)
        async with routed(liar, good, policy=policy) as router:
            for _ in range(24):
                status, _, body = await router.post(BODY)
                assert (status, json.loads(body)["by"]) == (200, "good")
            assert len(liar.asked) <= 8, "it draws no herd"

    run(law)


def test_a_page_in_place_of_a_server_is_never_ready():
    async def law():
        async def pages(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await page()(None, {}, b"", writer)
            writer.close()

        server = await asyncio.start_server(pages, "127.0.0.1", 0)
        async with routed(ScriptedReplica("good")) as router:
            router.app.add_replica("page", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await router.until(lambda: router.app.fleet.get("page").state.value == "not ready")
            for _ in range(8):
                assert json.loads((await router.post(BODY))[2])["by"] == "good"
        server.close()

    run(law)


def test_the_routers_own_want_of_sockets_is_no_fault_of_a_replica(monkeypatch):
    async def law():
        async with routed(ScriptedReplica("a"), wait_s=0.3) as router:
            replica = router.app.fleet.get("a")
            pool = router.app.members.pool(replica)

            async def none_left():
                raise OSError(24, "Too many open files")

            monkeypatch.setattr(pool, "connect", none_left)
            monkeypatch.setattr(pool, "idle", lambda: None)
            statuses = [(await router.post(BODY))[0] for _ in range(3)]
            assert set(statuses) == {503}
            assert (replica.num_failed, replica.breaker.is_closed) == (0, True)

    run(law)


def test_an_alias_whose_first_model_nobody_serves_takes_its_fallback(tmp_path):
    async def law():
        rules = {
            "models": {"chat": {"split": {"missing": 1.0}, "fallback": ["there"]}},
            "prices": {"there": {"output": 1.0}},
        }
        async with behind_gateway(tmp_path, rules, foreign("there", saying("there"))) as (router, asked):
            assert said(await asked("chat")) == "there"
            (doubt,) = [one for one in doubts(router.app) if "missing" in one]
            assert "'chat'" in doubt

    run(law)


def test_overflow_is_immediate_where_no_replica_is_ready(tmp_path):
    async def law():
        rules = {
            "models": {"chat": {"split": {"large": 1.0}, "fallback": ["small"]}},
            "prices": {"small": {"output": 1.0}, "large": {"output": 1.0}},
        }
        large, small = foreign("large", saying("large")), foreign("small", saying("small"))
        async with behind_gateway(tmp_path, rules, large, small, wait_s=60.0) as (router, asked):
            assert said(await asked("chat")) == "large"
            large.is_ready = False
            await router.until(lambda: router.app.fleet.get("large").state.value == "not ready")
            start_s = time.monotonic()
            assert said(await asked("chat")) == "small"
            assert time.monotonic() - start_s < 30.0

    run(law)


def test_overflow_is_immediate_where_the_predicted_wait_is_longer_than_one_wants(tmp_path):
    async def law():
        rules = {
            "models": {"chat": {"split": {"large": 1.0}, "fallback": ["small"]}},
            "prices": {"small": {"output": 1.0}, "large": {"output": 1.0}},
            "max_wait_s": 10.0,
        }
        large, small = foreign("large", saying("large")), foreign("small", saying("small"))
        async with behind_gateway(tmp_path, rules, large, small, wait_s=60.0) as (router, asked):
            busy = router.app.fleet.get("large")
            for num_waiting_tokens, answer in ((9, "large"), (11, "small"), (0, "large")):
                busy.token_s, busy.num_waiting_tokens = 1.0, num_waiting_tokens
                assert said(await asked("chat")) == answer

    run(law)


def test_a_stream_of_a_silent_replica_moves_and_that_of_a_busy_one_stays():
    """Bytes are signs of life, whatever probes say."""

    async def law():
        frozen, good = ScriptedReplica("a", telling(3, stall=True)), ScriptedReplica("b", telling())
        async with routed(frozen, good) as router:
            replica = router.app.fleet.get("a")
            now = router.app.dispatch.now()
            replica.asked_s, replica.heard_s = now - 2 * SILENT_S, now
            assert not router.app.fleet.find_silent(now)
            replica.heard_s = now - 2 * SILENT_S
            assert router.app.fleet.find_silent(now) == [replica]
            assert not router.app.fleet.takes(replica, now)

    run(law)


def test_a_replica_that_tells_nothing_of_its_requests_is_looked_at_before_the_next_probe_is_due():
    async def law():
        async with routed(ScriptedReplica("a"), ScriptedReplica("b")) as router:
            fleet, now = router.app.fleet, router.app.dispatch.now()
            replica = fleet.get("a")
            fleet.begin(replica, 8, now)
            assert not fleet.find_quiet(now), "it was asked just now"
            assert fleet.find_quiet(now + QUIET_S) == [replica], "and the other has no request"
            replica.moved_s = now + QUIET_S
            assert not fleet.find_quiet(now + QUIET_S)
            fleet.end(replica, True, 8, now)
            assert not fleet.find_quiet(now + 10 * QUIET_S)

    run(law)


def test_a_stream_whose_engine_hangs_moves_to_a_free_replica():
    """However long it is until the next probe is due."""
    flags = ("--policy", "round-robin", "slow-start-s=0", "probe-s=30")
    with service(*flags, model="oracle:step_ms=20") as pair, pair.http() as http:
        calm, _ = spoken(http, "/v1/completions", STREAMS["/v1/completions"])
        stopped: list[int] = []

        class Stopper:
            def __init__(self, number: int) -> None:
                self._number = number

            def cut(self) -> None:
                stopped.append(pair.servers[self._number].engine_pid)
                os.kill(stopped[0], signal.SIGSTOP)

        try:
            stormy, _ = spoken(http, "/v1/completions", STREAMS["/v1/completions"], 8, (Stopper(0), Stopper(1)))
        finally:
            os.kill(stopped[0], signal.SIGCONT)
        assert stormy == calm
        assert pair.metric("penstock_router_failovers_total") == 1


def test_a_client_that_never_reads_is_not_read_from():
    """Whatever it sends ahead, what is kept for it stays within a few buffers."""

    async def law():
        async with routed(ScriptedReplica("a")) as router:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", router.port))
            flood = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 12
            num_sent = 0
            try:
                while num_sent < 64 << 20:
                    await asyncio.wait_for(loop.sock_sendall(client, flood), 2.0)
                    num_sent += len(flood)
            except (TimeoutError, OSError):
                pass
            assert num_sent < 16 << 20, "reading has stopped"
            (connection,) = [one for one in router.connections if one.transport is not None]
            assert connection.transport.get_write_buffer_size() < 1 << 20
            status, _, _ = await router.post(BODY)
            assert status == 200
            client.close()

    run(law)
