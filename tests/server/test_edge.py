"""Nothing a client sends before it is served may cost others: bounds on bodies, texts, pipelines and places."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.core.request import Request, SamplingParams
from penstock.service.edge.bodies import BodiesInFlight, BodyAccount
from penstock.service.edge.headers import MAX_PIPELINED
from penstock.service.edge.refusal import Refusal
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.body import BodyLimits, BodyScan, convert
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.large import Turns, yield_to_others
from penstock.service.server.openai.protocol import CompletionBody
from tests.machine import PATIENCE_S
from tests.server.serving import ROOT, Server, idle_client, serving, user


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def exchange(server: Server, data: bytes) -> bytes:
    """What comes back until the server closes, or says nothing more."""
    with socket.create_connection(address(server), timeout=10.0) as client:
        client.sendall(data)
        parts = []
        with contextlib.suppress(TimeoutError):
            while part := client.recv(65536):
                parts.append(part)
                if b"\r\n\r\n" in b"".join(parts) and b"close" not in b"".join(parts).lower():
                    break
        return b"".join(parts)


# Places


def test_a_burst_that_fits_the_rows_is_taken():
    client = idle_client(max_waiting=1, max_sequences=8)
    admission = Admission(client, num_tenants=0)
    for _ in range(9):
        admission.enter("")
        client.submit(Request(request_id=client.next_id(), prompt=(1,), params=SamplingParams()))
    with pytest.raises(ApiError) as caught:
        admission.enter("")
    assert caught.value.status == 503


def test_choices_and_prompt_tokens_are_counted_before_the_first_byte():
    client = idle_client(max_waiting=2, max_sequences=2)
    admission = Admission(client, num_tenants=0)
    with pytest.raises(ApiError):
        admission.reserve([(1,)], SamplingParams(n=5), "")
    admission.reserve([(1,) * 2000], SamplingParams(), "")
    client.submit(Request(request_id=client.next_id(), prompt=(1,) * 600, params=SamplingParams()))
    with pytest.raises(ApiError):
        admission.reserve([(1,) * 600], SamplingParams(), "")


def test_a_body_that_trickles_takes_no_place():
    with serving("--max-waiting", "1", "--max-sequences", "1") as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        slow = [socket.create_connection(address(server)) for _ in range(8)]
        try:
            for client in slow:
                client.sendall(head)
            response = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})
            assert response.status_code == 200
        finally:
            for client in slow:
                client.close()


# Bodies and texts


def test_bytes_in_flight_are_bounded_by_tenant_and_in_all():
    bodies = BodiesInFlight(100, has_tenants=True)
    account, other = BodyAccount(bodies, "a"), BodyAccount(bodies, "b")
    account.add(50)
    with pytest.raises(Refusal) as caught:
        account.add(1)
    assert caught.value.status == 503
    other.add(50)
    with pytest.raises(Refusal):
        other.add(1)
    account.close()
    other.close()
    assert bodies.num_bytes == 0


@pytest.mark.parametrize("data", [b'{"prompt": [' + b"1," * 600_000 + b"1]}", b"{" + b'"a":1,' * 200_000 + b'"b":1}'])
def test_bodies_of_too_many_values_are_not_received_to_their_end(data):
    scan = BodyScan(BodyLimits(16 << 20))
    with pytest.raises(ApiError) as caught:
        scan_all(scan, data, 1000)
    assert caught.value.status == 413
    assert scan.num_bytes < len(data)


def scan_all(scan: BodyScan, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        scan.take(data[start : start + size])


def test_bodies_of_too_many_fields_are_refused():
    with pytest.raises(ApiError) as caught:
        convert({f"a{number}": 1 for number in range(2000)}, CompletionBody, {})
    assert caught.value.status == 413


@given(st.lists(st.sampled_from([b"a" * 300, b'"', b'\\"', b'"data:', b"x"]), max_size=30), st.integers(1, 400))
def test_a_run_between_quotes_is_found_however_it_is_cut(pieces, size):
    data = b"".join(pieces)
    scan = BodyScan(BodyLimits(1 << 20, max_run_bytes=500))
    longest = max(map(len, data.split(b'"')))
    if longest > 500 and size < 300 and b"data:" not in data:
        with pytest.raises(ApiError, match="longer than any context"):
            scan_all(scan, data, size)
    elif longest <= 500:
        scan_all(scan, data, size)


def test_large_pieces_of_work_take_turns_and_tenants_too():
    async def law() -> list[str]:
        turns, order = Turns(), []

        async def work(tenant: str) -> None:
            async with turns.take(tenant):
                order.append(tenant)
                count = len(order)
                await yield_to_others()
                assert len(order) == count, "nobody else came in"

        first = asyncio.create_task(work("a"))
        await asyncio.sleep(0)
        others = [asyncio.create_task(work(tenant)) for tenant in "aaabb"]
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        return order

    assert asyncio.run(law()) == ["a", "b", "a", "b", "a"]


def test_texts_that_several_threads_tokenize_take_turns_by_tenant():
    async def law() -> list[str]:
        turns, order, running = Turns(2), [], set()

        async def work(tenant: str, number: int) -> None:
            async with turns.take(tenant):
                order.append(tenant)
                running.add(number)
                assert len(running) <= 2
                await yield_to_others()
                running.remove(number)

        tasks = [asyncio.create_task(work("flood", number)) for number in range(50)]
        await asyncio.sleep(0)
        await asyncio.gather(*tasks, asyncio.create_task(work("polite", -1)))
        return order

    assert asyncio.run(law()).index("polite") <= 3


def test_prompts_are_counted_before_they_are_tokenized(server: Server):
    response = server.post("/v1/completions", {"prompt": ["a" * 400] * 2000, "n": 2})
    assert response.json()["error"]["message"].startswith("prompts times n")


def test_a_body_without_end_is_cut_off_after_its_refusal(server: Server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    part = b"40000\r\n" + b"a" * 0x40000 + b"\r\n"
    with socket.create_connection(address(server), timeout=PATIENCE_S) as client:
        client.sendall(head)
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(4096):
                client.sendall(part)
    assert server.get("/livez").status_code == 200


def test_an_upload_without_end_is_cut_off(server: Server):
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    opening = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    part = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    with socket.create_connection(address(server), timeout=PATIENCE_S) as client:
        client.sendall(head + b"%x\r\n%b\r\n" % (len(opening), opening))
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(1024):
                client.sendall(part)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("9" * 5000, "logit_bias has a key of more than 12 characters; shorten it"),
        ("1e3", "logit_bias has the key '1e3'; keys are token ids, 0 to 255"),
        ("²", "logit_bias has the key '²'; keys are token ids, 0 to 255"),
    ],
)
def test_a_bias_for_what_is_no_token_is_told_in_words(server: Server, key: str, words: str):
    error = server.post("/v1/completions", {"prompt": "a", "logit_bias": {key: 1}}).json()["error"]
    assert (error["param"], error["message"]) == ("logit_bias", words)


def test_texts_longer_than_any_context_are_refused_before_they_are_tokenized(server: Server):
    text = "a" * (6 << 20)
    for path, body in {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": user(text)},
        "/tokenize": {"prompt": text},
    }.items():
        response = server.post(path, body)
        assert response.status_code == 400, path
        assert response.json()["error"]["code"] == "context_length_exceeded"


def test_special_tokens_in_a_tokenized_text_follow_the_flag(server: Server):
    plain = server.post("/tokenize", {"prompt": "abc", "parse_special": False})
    assert plain.json()["tokens"] == server.post("/tokenize", {"prompt": "abc"}).json()["tokens"]


# Connections


def test_a_client_that_sends_without_reading_is_cut_off(server: Server):
    flood = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000
    is_cut = False
    with socket.create_connection(address(server), timeout=PATIENCE_S) as client:
        for _ in range(50):
            try:
                client.sendall(flood)
            except OSError:
                is_cut = True
                break
    assert is_cut
    assert server.get("/livez").status_code == 200


def test_some_pipelining_is_served(server: Server):
    count = MAX_PIPELINED // 2
    data = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * count
    with socket.create_connection(address(server), timeout=PATIENCE_S) as client:
        client.sendall(data)
        received = b""
        while received.count(b"HTTP/1.1 200") < count:
            piece = client.recv(65536)
            assert piece, "it ended before every answer was there"
            received += piece


BODY = json.dumps({"prompt": "abc", "max_tokens": 8, "stream": True}).encode()


def test_old_clients_get_no_parts(server: Server):
    head = b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    answer = exchange(server, head + BODY)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0]
    assert b"chunked" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n")
    assert int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) == len(body)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nAccept: */*\r\n\r\n",
        b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_ambiguous_requests_are_refused(server: Server, head: bytes):
    assert b" 400 " in exchange(server, head).split(b"\r\n")[0]


# The machine


def test_an_unwritable_error_stream_stops_nothing():
    """The log goes to a full disk: a hung engine is still replaced, and a signal still drains."""
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "penstock",
                "serve",
                "oracle:",
                "--port",
                "0",
                "--num-blocks",
                "64",
                "hang-s=1",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
        try:
            assert process.stdout is not None
            url = next(found.group() for line in process.stdout if (found := re.search(r"http://[^/\s]+", line)))
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            os.kill(first, signal.SIGSTOP)
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                response = httpx.post(url + "/v1/completions", json={"prompt": "abc", "max_tokens": 2}, timeout=60.0)
                if response.status_code == 200:
                    break
            assert response.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_a_whole_answer_outlives_its_engine():
    with serving(model="oracle:step_ms=20") as server:
        expected = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 60, "temperature": 0}).json()
        answers = []

        def ask() -> None:
            answers.append(server.post("/v1/completions", {"prompt": "abc", "max_tokens": 60, "temperature": 0}))

        asking = threading.Thread(target=ask)
        asking.start()
        while not server.metric("vllm:num_requests_running"):
            pass
        os.kill(server.engine_pid, signal.SIGKILL)
        asking.join(60)
        assert answers[0].status_code == 200
        assert answers[0].json()["choices"] == expected["choices"]


def test_refusals_are_logged_by_id_and_debug_explains_steps():
    flags = ("--max-sequences", "1", "--max-waiting", "1", "--log-level", "debug")
    with serving(*flags, model="oracle:step_ms=20", is_real=True) as server:
        secret = "a-word-that-no-log-may-hold"

        def ask() -> None:
            server.post("/v1/completions", {"prompt": secret, "max_tokens": 100, "temperature": 0})

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for one in asking:
            one.start()
        while server.metric("penstock_calls_open") < 2:
            pass
        refused = server.post("/v1/completions", {"prompt": secret})
        assert refused.status_code == 503
        for one in asking:
            one.join(60)
        log = server.errors.read_text()
        assert f"request {refused.headers['x-request-id']} is refused: 503 overloaded, /v1/completions" in log
        assert re.search(r"step \d+: \d+ of \d+ tokens: .* decodes 1; 1 wait for rows", log)
        assert secret not in log
