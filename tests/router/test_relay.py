"""Laws of relaying: every request has one outcome, retries only before the first byte, answers that go on unseen."""

import asyncio
import json

import pytest

from penstock.service.router.fleet import ReplicaState
from tests.machine import PATIENCE_S
from tests.router.harness import (
    SHOWN,
    WORDS,
    ScriptedReplica,
    answer,
    ask,
    chunk,
    head,
    read_answer,
    routed,
    telling,
    whole,
)

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def run(law) -> None:
    asyncio.run(asyncio.wait_for(law(), PATIENCE_S))


def failing(status: int = 500):
    async def handler(replica, headers, body, writer):
        writer.write(whole(b'{"error":{"message":"no"}}', status))

    return handler


async def dropping(replica, headers, body, writer):
    writer.transport.abort()


def test_requests_take_turns_and_say_who_answered():
    async def law():
        async with routed(ScriptedReplica("a"), ScriptedReplica("b")) as router:
            found = []
            for _ in range(4):
                status, headers, body = await router.post(BODY)
                assert status == 200
                assert headers["x-penstock-route"].startswith(json.loads(body)["by"] + "; why=next in turn")
                assert headers["x-request-id"]
                found.append(json.loads(body)["by"])
            assert sorted(found) == ["a", "a", "b", "b"]

    run(law)


@pytest.mark.parametrize("handler", [failing(500), failing(503), dropping])
def test_what_one_replica_fails_another_answers(handler):
    async def law():
        async with routed(ScriptedReplica("bad", handler), ScriptedReplica("good")) as router:
            for _ in range(8):
                status, _, body = await router.post(BODY)
                assert (status, json.loads(body)["by"]) == (200, "good")

    run(law)


def test_a_clients_own_fault_is_passed_on_and_opens_no_breaker():
    async def law():
        async with routed(ScriptedReplica("a", failing(400)), ScriptedReplica("b", failing(422))) as router:
            statuses = [(await router.post(BODY))[0] for _ in range(40)]
            assert sorted(set(statuses)) == [400, 422]
            assert all(replica.breaker.is_closed for replica in router.app.fleet)
            assert sum(len(replica.asked) for replica in router.replicas) == 40

    run(law)


def test_a_replica_that_fails_is_left_alone_and_comes_back():
    async def law():
        bad, good = ScriptedReplica("bad", failing()), ScriptedReplica("good")
        async with routed(bad, good) as router:
            breaker = router.app.fleet.get("bad").breaker
            while breaker.is_closed:
                assert (await router.post(BODY))[0] == 200
            num_asked = len(bad.asked)
            for _ in range(10):
                assert json.loads((await router.post(BODY))[2])["by"] == "good"
            assert len(bad.asked) <= num_asked + 1  # one try at most in that time
            bad.handler = answer
            while not breaker.is_closed:
                await router.post(BODY)
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(2)} == {"bad", "good"}

    run(law)


def test_retries_stay_within_their_budget():
    async def law():
        replicas = [ScriptedReplica(name, failing()) for name in "abc"]
        async with routed(*replicas) as router:
            for _ in range(200):
                assert (await router.post(BODY))[0] in (500, 503)
            assert sum(len(replica.asked) for replica in replicas) <= 200 * 1.1 + 11

    run(law)


@pytest.mark.parametrize("dies", ["the server", "the engine"])
def test_whole_answers_that_die_with_their_replica_are_asked_for_again_whatever_the_budget(dies):
    """More of them at once than there are retries to spend: nobody has seen a byte, so nobody hears of it."""

    async def law():
        async def stuck(replica, headers, body, writer):
            await replica.released.wait()
            writer.write(whole(b'{"error":{"message":"gone"}}', 503, retry_after="1", x_penstock_lost="1"))

        dying, good = ScriptedReplica("dying", stuck), ScriptedReplica("good")
        async with routed(dying, good) as router:
            asking = [asyncio.create_task(router.post(BODY)) for _ in range(120)]
            await router.until(lambda: len(dying.asked) == 60)
            if dies == "the server":
                await dying.kill()
            else:
                dying.released.set()
                dying.is_ready = False
            for task in asking:
                status, _, body = await task
                assert (status, json.loads(body)["by"]) == (200, "good")

    run(law)


@pytest.mark.parametrize("hedge_s", [0.0, 0.01])
def test_a_late_replica_is_raced_only_where_that_is_asked_for(hedge_s):
    async def law():
        async def stuck(replica, headers, body, writer):
            await replica.released.wait()
            await answer(replica, headers, body, writer)

        late, good = ScriptedReplica("late", stuck), ScriptedReplica("good")
        async with routed(late, good, hedge_s=hedge_s) as router:
            asking = [asyncio.create_task(router.post(BODY)) for _ in range(2)]
            await router.until(lambda: len(late.asked) == 1 and len(good.asked) == (2 if hedge_s else 1))
            if not hedge_s:
                late.released.set()
            found = [json.loads((await task)[2])["by"] for task in asking]
            assert sorted(found) == (["good", "good"] if hedge_s else ["good", "late"])
            assert router.app.meters.hedges.value() == (1 if hedge_s else 0)
            assert all(replica.num_pending == 0 for replica in router.app.fleet)

    run(law)


def test_an_engine_of_another_make_never_goes_on_with_an_answer_it_did_not_begin():
    """It would begin again: the client would read the same words twice."""

    async def law():
        ours, foreign = ScriptedReplica("ours", telling(3)), ScriptedReplica("foreign", truncated)
        async with routed(ours, foreign, wait_s=0.5) as router:
            bodies = [(await router.post(BODY | {"stream": True}))[2] for _ in range(4)]
            for body in bodies:
                events = body.split(b"\n\n")[:-1]
                assert len(set(events)) == len(events)
                assert events[-1] == b"data: [DONE]" or b"replica_failed" in events[-1] or b"no_replica" in events[-1]

    run(law)


def test_the_last_replica_is_never_shut_out():
    async def law():
        only = ScriptedReplica("only", failing())
        async with routed(only) as router:
            for _ in range(20):
                assert (await router.post(BODY))[0] in (500, 503)
            only.handler = answer
            assert (await router.post(BODY))[0] == 200

    run(law)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("die_after", [0, 1, 5, 8])
def test_a_stream_goes_on_at_another_replica_and_its_client_sees_one_answer(die_after, split):
    async def law():
        first, second = ScriptedReplica("a", telling(die_after, split=split)), ScriptedReplica("b", telling())
        async with routed(first, second) as router:
            for _ in range(2):  # whichever of them begins
                status, _, body = await router.post(BODY | {"stream": True})
                assert (status, body) == (200, SHOWN)
            assert router.app.meters.failovers.value() == (1 if die_after < 8 else 0)

    run(law)


def test_a_stream_survives_more_deaths_than_there_are_replicas():
    async def law():
        async with routed(ScriptedReplica("a", telling(2)), ScriptedReplica("b", telling(2))) as router:
            status, _, body = await router.post(BODY | {"stream": True})
            assert (status, body) == (200, SHOWN)
            assert router.app.meters.failovers.value() == 3

    run(law)


def test_a_stream_that_is_taken_over_outlives_replicas_that_say_nothing():
    """The next one is gone before it begins, and the one after it is the first, back again."""

    async def law():
        begun, mute = ScriptedReplica("a", telling(5)), ScriptedReplica("b", dropping)
        async with routed(begun, mute) as router:
            status, _, body = await router.post(BODY | {"stream": True})
            assert (status, body) == (200, SHOWN)

    run(law)


def test_a_replica_that_stops_answering_loses_its_streams_to_another():
    async def law():
        frozen, good = ScriptedReplica("a", telling(3, stall=True)), ScriptedReplica("b", telling())
        async with routed(frozen, good, policy="session") as router:
            sessions = [f"s{number}" for number in range(64)]
            bodies = [BODY | {"stream": True, "user": session} for session in sessions]
            asking = [asyncio.create_task(router.post(body)) for body in bodies]
            await router.until(lambda: len(frozen.asked) + len(good.asked) == 64 and len(frozen.asked) > 0)
            frozen.is_ready = False
            await router.until(lambda: router.app.fleet.get("a").state is ReplicaState.UNREADY)
            router.app.fleet.set_state(router.app.fleet.get("a"), ReplicaState.GONE, router.app.dispatch.now())
            router.app.changed(router.app.fleet.get("a"))
            for task in asking:
                assert (await task)[2] == SHOWN

    run(law)


async def truncated(replica, headers, body, writer):
    writer.write(head(content_type="text/event-stream", transfer_encoding="chunked") + b"\r\n" + chunk(b"data: 1\n\n"))
    await writer.drain()
    writer.transport.abort()


def poisoned(num_words: int):
    """Goes on by so many words, then ends in an error of its own; says so at once where it has none to add."""

    async def handler(replica, headers, body, writer):
        is_resumed, size = "x-penstock-resume" in headers, int(headers.get("x-penstock-resume", 0))
        begin = len(body[:size].split(b",")) if size else 0
        if is_resumed and not num_words:
            writer.write(whole(b'{"error":{"message":"no"}}', 500))
            return
        kind = "text/event-stream; charset=utf-8"
        writer.write(head(content_type=kind, transfer_encoding="chunked", x_penstock_relay="1") + b"\r\n")
        writer.write(chunk(b":t \n\n" if is_resumed else b"data: begin\n\n:t \n\n"))
        for number in range(begin, min(begin + num_words, len(WORDS))):
            writer.write(chunk(b"data: %b\n\n:t 0=%d\n\n" % (WORDS[number].encode(), number)))
        if begin + num_words >= len(WORDS):
            writer.write(chunk(b"data: [DONE]\n\n:u 5 8 0\n\n"))
        else:
            writer.write(chunk(b'data: {"error":{}}\n\n'))
        writer.write(b"0\r\n\r\n")

    return handler


def test_a_stream_that_no_replica_can_go_on_with_is_tried_three_times():
    async def law():
        async with routed(ScriptedReplica("a", poisoned(0)), ScriptedReplica("b", poisoned(0))) as router:
            status, _, body = await router.post(BODY | {"stream": True})
            assert status == 200
            begin, last, rest = body.split(b"\n\n")
            assert (begin, rest) == (b"data: begin", b"")
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["message"].startswith("the model failed on this request")
            assert error["type"] == "server_error"
            assert sum(len(replica.asked) for replica in router.replicas) == 3

    run(law)


def test_errors_with_tokens_between_them_are_outlived():
    async def law():
        async with routed(ScriptedReplica("a", poisoned(2)), ScriptedReplica("b", poisoned(2))) as router:
            status, _, body = await router.post(BODY | {"stream": True})
            assert (status, body) == (200, SHOWN)
            assert sum(len(replica.asked) for replica in router.replicas) == 4

    run(law)


def test_a_stream_that_cannot_go_on_ends_in_an_error_event():
    async def law():
        async with routed(ScriptedReplica("foreign", truncated), ScriptedReplica("b")) as router:
            answers = [await router.post(BODY | {"stream": True}) for _ in range(2)]
            (body,) = [body for _, headers, body in answers if "text/event-stream" in headers["content-type"]]
            first, last, _ = body.split(b"\n\n")
            assert first == b"data: 1"
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == "replica_failed"
            assert set(error) == {"message", "type", "param", "code"}

    run(law)


def test_an_answer_cut_short_before_it_was_whole_is_asked_for_again():
    async def law():
        async def short(replica, headers, body, writer):
            writer.write(head(content_type="application/json", content_length="100") + b"\r\n{")
            await writer.drain()
            writer.transport.abort()

        async with routed(ScriptedReplica("short", short), ScriptedReplica("good")) as router:
            for _ in range(4):
                status, _, body = await router.post(BODY)
                assert (status, json.loads(body)["by"]) == (200, "good")

    run(law)


def test_requests_wait_for_a_replica_and_are_refused_with_a_time_when_none_comes():
    async def law():
        late = ScriptedReplica("late", is_ready=False)
        async with routed(late, wait_s=PATIENCE_S) as router:
            asking = asyncio.create_task(router.post(BODY))
            await router.until(lambda: router.app.num_parked == 1)
            late.is_ready = True
            assert (await asking)[0] == 200
        gone = ScriptedReplica("gone", is_ready=False)
        async with routed(gone, wait_s=0.0) as router:
            status, headers, body = await router.post(BODY)
            assert (status, json.loads(body)["error"]["code"]) == (503, "no_replica")
            assert int(headers["retry-after"]) > 0

    run(law)


def test_before_the_first_replica_has_come_any_model_may_be_served():
    async def law():
        late = ScriptedReplica("late")
        await late.open()
        async with routed(wait_s=PATIENCE_S) as router:
            asking = asyncio.create_task(router.post(BODY))
            await router.until(lambda: router.app.num_parked == 1)
            router.app.add_replica("late", f"http://127.0.0.1:{late.port}")
            assert (await asking)[0] == 200
        await late.kill()

    run(law)


def test_a_client_that_leaves_takes_its_request_with_it():
    async def law():
        left = asyncio.Event()

        async def endless(replica, headers, body, writer):
            writer.write(
                head(content_type="text/event-stream", transfer_encoding="chunked", x_penstock_relay="1") + b"\r\n"
            )
            try:
                while True:
                    writer.write(chunk(b"data: x\n\n:t 0=1\n\n"))
                    await writer.drain()
                    await asyncio.sleep(0.001)
            finally:
                left.set()

        async with routed(ScriptedReplica("a", endless)) as router:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            body = json.dumps(BODY | {"stream": True}).encode()
            writer.write(b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await reader.readuntil(b"data: x")
            writer.close()
            await left.wait()
            await router.until(lambda: router.app.num_open == 0)
            assert router.app.fleet.get("a").num_pending == 0

    run(law)


def test_draining_and_removal_send_nothing_new_and_cut_nothing_off():
    async def law():
        slow, other = ScriptedReplica("slow"), ScriptedReplica("other")

        async def waits(replica, headers, body, writer):
            await replica.released.wait()
            await answer(replica, headers, body, writer)

        slow.handler = waits
        async with routed(slow, other) as router:
            asking = [asyncio.create_task(router.post(BODY)) for _ in range(2)]
            await router.until(lambda: len(slow.asked) == 1 and len(other.asked) == 1)
            router.app.remove_replica("slow")
            for _ in range(6):
                assert json.loads((await router.post(BODY))[2])["by"] == "other"
            slow.released.set()
            assert {json.loads((await task)[2])["by"] for task in asking} == {"slow", "other"}

    run(law)


def test_a_shutdown_finishes_what_it_has_and_takes_nothing_new():
    async def law():
        async def waits(replica, headers, body, writer):
            await replica.released.wait()
            await answer(replica, headers, body, writer)

        replica = ScriptedReplica("a", waits)
        async with routed(replica) as router:
            asking = asyncio.create_task(router.post(BODY))
            await router.until(lambda: len(replica.asked) == 1)
            draining = asyncio.create_task(router.app.drain(20.0))
            await asyncio.sleep(0)
            status, headers, _ = await router.post(BODY)
            assert status == 503
            assert headers["retry-after"]
            replica.released.set()
            assert (await asking)[0] == 200
            assert await draining == 0

    run(law)


def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure():
    async def law():
        replica = ScriptedReplica("a")
        async with routed(replica) as router:
            assert (await router.post(BODY))[0] == 200
            for writer in tuple(replica.writers):
                writer.transport.abort()
            assert (await router.post(BODY))[0] == 200
            assert router.app.fleet.get("a").num_failed == 0

    run(law)


def test_several_requests_on_one_connection_are_answered_in_order():
    async def law():
        async with routed(ScriptedReplica("a"), ScriptedReplica("b")) as router:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            body = json.dumps(BODY).encode()
            request = b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\nx-request-id: r%d\r\ncontent-length: %d\r\n\r\n"
            writer.write(b"".join(request % (number, len(body)) + body for number in range(16)))
            for number in range(16):
                status, headers, _ = await read_answer(reader)
                assert (status, headers["x-request-id"]) == (200, f"r{number}")
            writer.close()

    run(law)


def test_an_unknown_model_is_said_to_be_unknown():
    async def law():
        async with routed(ScriptedReplica("a", model="one"), ScriptedReplica("b", model="two")) as router:
            assert json.loads((await router.post(BODY | {"model": "two"}))[2])["by"] == "b"
            status, _, body = await router.post(BODY | {"model": "three"})
            assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
            listed = json.loads((await ask(router.port, b"", "/v1/models", "GET"))[2])
            assert {model["id"] for model in listed["data"]} == {"one", "two"}

    run(law)


class BreakingTransport:
    """As uvloop's between an error on its socket and the moment its protocol is told: closing, and no write is taken."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    def abort(self) -> None: ...


def test_a_kept_connection_that_broke_this_moment_costs_its_client_nothing():
    async def law():
        async with routed(ScriptedReplica("a")) as router:
            assert (await router.post(BODY))[0] == 200
            (pool,) = (pool for _, pool in router.app.members)
            await router.until(lambda: bool(pool._idle))
            real = [connection.transport for connection in pool._idle]
            for connection in pool._idle:
                connection.transport = BreakingTransport()
            assert (await router.post(BODY))[0] == 200
            for transport in real:
                transport.abort()

    run(law)
