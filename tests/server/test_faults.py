"""Whatever befalls engine, network or client: every call ends once and rightly, and what it held is free again."""

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.service.edge.headers import HEADERS_S
from penstock.service.webfiles import has_web_app
from tests.engine.poisoned import DIE, EXHAUST, RAISE
from tests.machine import PATIENCE_S, free_port, wait_until
from tests.server.ledger import Ledger, http_of, mixed_load
from tests.server.serving import Server, chat_text, serving, start, user

SLOW_STEPS = "oracle:step_ms=5"


@pytest.mark.parametrize(("count", "in_flight"), [(120, 64), pytest.param(20_000, 256, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_wrong_under_load(server: Server, count: int, in_flight: int) -> None:
    asyncio.run(mixed_load(server, Ledger(), 64, in_flight=64, seed=0))
    before, held = resources(server), server.metric("vllm:kv_cache_usage_perc")
    ledger = Ledger()
    asyncio.run(mixed_load(server, ledger, count, in_flight=in_flight, seed=1))
    assert (ledger.complete, ledger.faults, ledger.wrong, ledger.lost, ledger.refused) == (count, [], [], [], [])
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
    wait_until(lambda: server.metric("vllm:kv_cache_usage_perc") <= held)  # what others have pinned for a time stays
    wait_until(lambda: server.metric("penstock_calls_open") == 0)
    wait_until(lambda: resources(server)[0] <= before[0])
    assert resources(server)[1] - before[1] < 64 << 20


def resources(server: Server) -> tuple[int, int]:
    """Open files and resident bytes of server and engine."""
    pids = (server.process.pid, server.engine_pid)
    num_files = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    num_pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return num_files, num_pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("num_kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_an_engine_that_is_killed_loses_no_call(num_kills: int) -> None:
    async def law(running: Server) -> None:
        for round_ in range(num_kills):
            ledger = Ledger()
            load = asyncio.create_task(mixed_load(running, ledger, 32, in_flight=32, seed=round_, tokens=150))
            while await asyncio.to_thread(running.metric, "vllm:num_requests_running") < 8:
                assert not load.done(), "all was answered before the engine could be killed"
            os.kill(running.engine_pid, signal.SIGKILL)
            await load
            assert ledger.complete + len(ledger.refused) + ledger.failed == 32
            assert (ledger.wrong, ledger.lost) == ([], [])
            assert ledger.complete > ledger.failed + len(ledger.refused), "the next engine goes on with what had begun"

    # An engine that a busy machine keeps silent for ten seconds is replaced as well, which is another law's subject.
    with serving("--max-sequences", "16", "--max-batch-tokens", "512", "hang-s=120", model=SLOW_STEPS) as running:
        asyncio.run(law(running))
        assert running.get("/readyz").status_code == 200
        assert running.metric("penstock_engine_restarts_total") == num_kills
        assert running.stop() == 0


def test_a_stopped_engine_is_unready_and_replaced() -> None:
    with serving("hang-s=2.5", model=SLOW_STEPS) as running:
        first = running.engine_pid
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: running.get("/readyz").status_code == 503)
        assert running.get("/livez").status_code == 200
        wait_until(lambda: running.get("/readyz").status_code == 200)
        assert running.engine_pid != first


@pytest.mark.slow
def test_a_server_that_was_stopped_does_not_blame_its_clients() -> None:
    """What was sent while we did not run is answered, though the time for sending it is over."""
    with serving() as running:
        host, port = running.url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(8)]
        for client in clients[::2]:
            client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert running.get("/livez").status_code == 200
        os.kill(running.process.pid, signal.SIGSTOP)
        for number, client in enumerate(clients):
            client.sendall(
                b"host: localhost\r\n\r\n" if number % 2 == 0 else b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
            )
        time.sleep(HEADERS_S + 0.5)
        os.kill(running.process.pid, signal.SIGCONT)
        for client in clients:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            client.close()


def test_an_engine_that_keeps_dying_ends_the_server_with_a_fault() -> None:
    with serving() as running:
        killed: list[int] = []
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")

        def is_another_there() -> bool:
            # Not the one before, whose end the server may not have seen yet.
            pids = [int(pid) for pid in children.read_text().split()]
            return bool(pids) and pids[0] not in killed and running.get("/health").status_code == 200

        for _ in range(3):
            wait_until(is_another_there)
            killed.append(running.engine_pid)
            os.kill(killed[-1], signal.SIGKILL)
        assert running.process.wait(PATIENCE_S) == 1
        assert "in a row" in running.errors.read_text()


@pytest.mark.parametrize("poison", [RAISE, EXHAUST, DIE])
@pytest.mark.parametrize("stream", [False, True])
def test_a_poisonous_prompt_hurts_itself_alone(server: Server, poison: int, stream: bool) -> None:
    if poison == DIE and stream:
        pytest.skip("kills three engines: once is enough")

    async def session() -> Ledger:
        ledger = Ledger()
        async with http_of(server) as http:
            body = {"prompt": [poison, 1, 2], "stream": stream}
            sick, _ = await asyncio.gather(
                http.post("/v1/completions", json=body), mixed_load(server, ledger, 31, in_flight=31, seed=9)
            )
            assert sick.status_code in (500, 503)
            assert "0x" not in sick.text
        return ledger

    ledger = asyncio.run(session())
    assert ledger.count == 31
    assert (ledger.wrong, ledger.lost) == ([], [])
    if poison != DIE:
        assert ledger.complete == 31


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_what_it_held(stream: bool, is_reset: bool, slow_server: Server) -> None:
    body = json.dumps({"messages": user("gone"), "max_tokens": 4000, "stream": stream}).encode()
    host, port = slow_server.url.removeprefix("http://").split(":")
    before = slow_server.metric("vllm:request_success_total", 'finished_reason="abort"')
    clients = [socket.create_connection((host, int(port))) for _ in range(8)]
    for client in clients:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
    wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 8)
    for client in clients:
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 0, 15.0)  # their answers would take twenty
    wait_until(lambda: slow_server.metric("vllm:kv_cache_usage_perc") == 0)
    wait_until(lambda: slow_server.metric("vllm:request_success_total", 'finished_reason="abort"') == before + 8)


@pytest.fixture(scope="module")
def slow_server() -> Any:
    with serving(model=SLOW_STEPS) as running:
        yield running


def test_a_reader_that_stalls_is_cut_off_and_slows_nobody() -> None:
    with serving("stall-s=1", model="scripted:step_ms=1") as running:
        _stall_some(running)


def _stall_some(slow_server: Server) -> None:
    host, port = slow_server.url.removeprefix("http://").split(":")
    body = json.dumps({"messages": user("slow"), "max_tokens": 6000, "n": 8, "stream": True}).encode()
    stalled = []
    for _ in range(4):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        stalled.append(client)
    wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 32)
    answer = slow_server.post("/v1/completions", {"prompt": "quick", "max_tokens": 100}).json()
    assert answer["usage"]["completion_tokens"] == 100
    wait_until(lambda: slow_server.metric("vllm:request_success_total", 'finished_reason="abort"') >= 4)
    wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 0)
    for client in stalled:
        client.close()


def test_more_than_fits_is_refused_at_once_and_told_when_to_return() -> None:
    flags = ["--max-sequences", "8", "--max-waiting", "8", "--max-batch-tokens", "256"]
    with serving(*flags, model=SLOW_STEPS) as running:
        ledger = Ledger()
        asyncio.run(mixed_load(running, ledger, 150, in_flight=100, seed=4))
        assert ledger.complete + len(ledger.refused) == 150
        assert (ledger.failed, ledger.wrong, ledger.lost) == (0, [], [])
        assert ledger.complete >= 16
        assert len(ledger.refused) > 20
        for response in ledger.refused:
            assert response.status_code == 503
            assert 1 <= int(response.headers["retry-after"]) <= 120
            assert response.json()["error"]["code"] == "overloaded"
        assert running.metric("penstock_requests_refused_total") >= len(ledger.refused) - 8
        late = Ledger()
        asyncio.run(mixed_load(running, late, 8, in_flight=4, seed=5))
        assert late.complete == 8, "it recovers"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3.0, 120.0])
def test_ten_times_too_much_is_served_as_well_as_just_enough(seconds: float) -> None:
    """Steps stay full, nothing is computed in vain, and whoever does not fit hears so at once."""
    flags = ["--max-sequences", "8", "--max-waiting", "8", "--max-batch-tokens", "256"]
    tokens, step_s = 16, 0.1
    num_calls = round(10 * 8 / (tokens * step_s) * seconds)
    with serving(*flags, model=f"oracle:step_ms={step_s * 1000}") as running:
        asyncio.run(mixed_load(running, Ledger(), 8, in_flight=8, seed=1, tokens=2))
        before = resources(running)
        first_tokens = generated(running)[0]
        flood = Ledger()
        begun, ended = asyncio.run(arrivals(running, flood, num_calls, seconds, tokens))
        assert (flood.failed, flood.wrong, flood.lost) == (0, [], [])
        assert flood.complete + len(flood.refused) == num_calls
        assert len(flood.refused) > num_calls / 2
        assert (ended[0] - begun[0]) / (ended[1] - begun[1]) >= 0.9 * 8, "tokens a step"
        assert generated(running)[0] - first_tokens == flood.complete * tokens
        assert all(1 <= int(response.headers["retry-after"]) <= 120 for response in flood.refused)
        refusals_ms = sorted(int(response.headers["openai-processing-ms"]) for response in flood.refused)
        assert refusals_ms[int(0.95 * len(refusals_ms))] <= 20
        late = Ledger()
        asyncio.run(mixed_load(running, late, 4, in_flight=4, seed=5, tokens=2))
        assert late.complete == 4
        assert resources(running)[1] - before[1] < 64 << 20


def generated(server: Server) -> tuple[float, float]:
    """Tokens and steps so far."""
    return server.metric("vllm:generation_tokens_total"), server.metric("penstock_engine_steps_total")


async def arrivals(
    server: Server, ledger: Ledger, count: int, seconds: float, tokens: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Calls at even distances, whether the earlier ones have ended or not.

    Returns what had been generated after the first fifth of them and after the last: between the two the server is full.
    """
    begun = (0.0, 0.0)
    async with http_of(server, 2000) as http, asyncio.TaskGroup() as calls:
        start_s = time.monotonic()
        for number in range(count):
            await asyncio.sleep(start_s + number * seconds / count - time.monotonic())
            calls.create_task(ledger.ask(http, f"flood {number}", stream=number % 2 == 0, tokens=tokens))
            if number == count // 5:
                begun = await asyncio.to_thread(generated, server)
        ended = await asyncio.to_thread(generated, server)
    return begun, ended


def test_a_termination_lets_answers_end() -> None:
    async def law(running: Server) -> None:
        ledger = Ledger()
        load = asyncio.create_task(mixed_load(running, ledger, 24, in_flight=24, seed=6, tokens=200))
        while running.metric("vllm:num_requests_running") < 24:
            await asyncio.sleep(0.01)
        engine = running.engine_pid
        os.kill(running.process.pid, signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: running.get("/readyz").status_code == 503)
        refused = running.post("/v1/chat/completions", {"messages": user("new")})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        await load
        assert (ledger.complete, ledger.wrong, ledger.lost) == (24, [], [])
        assert running.process.wait(PATIENCE_S) == 0
        assert not Path(f"/proc/{engine}").exists()

    with serving(model=SLOW_STEPS) as running:
        asyncio.run(law(running))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_answers_off_with_an_error(number: int) -> None:
    async def law(running: Server) -> None:
        ledger = Ledger()
        load = asyncio.create_task(mixed_load(running, ledger, 8, in_flight=8, seed=7, tokens=3000))
        while running.metric("vllm:num_requests_running") < 8:
            await asyncio.sleep(0.01)
        os.kill(running.process.pid, number)
        await asyncio.to_thread(
            wait_until, lambda: running.get("/readyz").status_code == 503
        )  # two at once would be one
        os.kill(running.process.pid, number)
        await load
        assert running.process.wait(PATIENCE_S) == 1
        assert ledger.failed + len(ledger.refused) == 8
        assert ledger.lost == []

    with serving(model=SLOW_STEPS) as running:
        asyncio.run(law(running))


def children_of(pid: int) -> dict[int, str]:
    """Their command lines."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_interrupt_while_the_engine_loads_ends_with_130_and_one_line() -> None:
    port = free_port()
    process = start(["-m", "penstock", "serve", "oracle:", "--port", str(port)], subprocess.PIPE)
    try:
        wait_until(
            lambda: any("penstock.assembly.worker" in words for words in children_of(process.pid).values()), 30.0
        )
        (worker,) = children_of(process.pid)
        os.kill(worker, signal.SIGSTOP)  # it will not be ready
        wait_until(lambda: is_listening(port))
        process.send_signal(signal.SIGINT)
        printed, reported = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, printed, reported) == (130, "", "penstock: interrupted\n")


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["--host", "0.0.0.0"], 2, "there is no key"),
        (["--port", "99999"], 2, "choose 0 to 65,535"),
        (["oracle:colour=1"], 2, "no option colour"),
        (["--api-key", "short"], 2, "shorter than 8"),
        (["--host", "203.0.113.7", "--api-key", "long-enough-key"], 2, "cannot listen"),
        (["--drain-s", "-1"], 2, "--drain-s"),
        (["--record", "/nonexistent/trace"], 2, "cannot be written"),
        (["no-such-model.gguf"], 2, "no-such-model.gguf"),
    ],
)
def test_an_impossible_start_ends_at_once_with_its_reason(
    words: list[str], status: int, reason: str, tmp_path: Path
) -> None:
    command = ["-m", "penstock", "serve", *(words if not words[0].startswith("--") else ["oracle:", *words])]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == status, done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_the_banner_says_where_what_and_how_much(server: Server) -> None:
    assert server.url in server.banner
    for words in ("oracle:", "KV cache", "users at", "started in", "curl http", "docs: http"):
        assert words in server.banner
    assert ("web app: http" in server.banner) == has_web_app()


def test_the_curl_line_works_as_printed(server: Server) -> None:
    line = next(line for line in server.banner.splitlines() if line.strip().startswith("curl"))
    line = line.replace('"}]}', '"}], "max_tokens": 4, "temperature": 0}')
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=PATIENCE_S, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == chat_text("Hello!", 4)
