"""Answers of a fleet with roles are those of one server, in every dialect, whoever is killed while blocks travel."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import pytest

from tests.machine import PATIENCE_S
from tests.router.service import Service, routing, started_together
from tests.server.serving import Server, serving

KEY = "what-all-replicas-know"
MODEL = "oracle:step_ms=3"
ENDS = (
    "finish_reason",
    "stop_reason",
    "done_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "prompt_eval_count",
    "eval_count",
)
FLAGS = ("--max-batch-tokens", "64", "--max-sequences", "16")


@dataclass
class Fleet:
    router: Service
    prefill: Server
    decode: Server
    alone: Server
    """One server that has never heard of others."""

    def counted(self, server: Server, name: str, label: str = "") -> float:
        headers = {"authorization": f"Bearer {KEY}"}
        text = httpx.get(server.url + "/metrics", headers=headers, timeout=PATIENCE_S).text
        found = re.findall(rf"^{name}(?:\{{[^}}]*{label}[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def same(self, path: str, body: dict[str, Any]) -> None:
        with self.alone.http() as one, self.router.http() as many:
            expected, got = one.post(path, json=body), many.post(path, json=body)
        assert got.status_code == expected.status_code == 200, got.text
        assert said(got.text) == said(expected.text)


def said(text: str) -> tuple[str, dict[str, Any]]:
    """What an answer says, however it was cut, and how it ended and what it counted at last."""
    words: list[str] = []
    ends: dict[str, Any] = {}

    def walk(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key in ("text", "content", "response") and isinstance(inner, str):
                words.append(inner)
            elif key in ENDS and inner is not None and inner != 0:
                ends[key] = inner
            elif isinstance(inner, dict | list):
                walk(inner)

    for line in text.splitlines():
        line = line.removeprefix("data: ")
        if line.startswith("{"):
            walk(json.loads(line))
    return "".join(words), ends


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        alone = stack.enter_context(serving(*FLAGS, model=MODEL))
        roles = [serving(*FLAGS, "--role", role, model=MODEL, is_real=True) for role in ("prefill", "decode")]
        with pytest.MonkeyPatch.context() as patch:  # not for servers that others start meanwhile
            patch.setenv("PENSTOCK_REPLICA_KEY", KEY)
            prefill, decode = started_together(stack, roles)
        flags = ("--policy", "prefix-reported", "--handover", "always", "slow-start-s=0", "wait-s=120")
        urls = [word for server in (prefill, decode) for word in ("--replica", server.url)]
        router = stack.enter_context(routing(*urls, *flags, servers=[prefill, decode], PENSTOCK_REPLICA_KEY=KEY))
        made = Fleet(router, prefill, decode, alone)
        with router.http() as http:
            while http.get("/router/replicas").text.count('"role":"') < 2:
                pass
        yield made


def text(seed: int, size: int = 300) -> str:
    return "".join(Random(seed).choices("abcdefgh ijklm", k=size))


def test_every_dialect_says_what_one_server_says(fleet: Fleet) -> None:
    for number in range(8):
        chat = [{"role": "user", "content": text(number, 150 + 70 * number)}]
        for stream in (False, True):
            greedy: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "stream": stream}
            fleet.same("/v1/chat/completions", {"messages": chat, **greedy})
            fleet.same("/v1/completions", {"prompt": text(100 + number), **greedy})
            fleet.same("/v1/messages", {"model": MODEL, "messages": chat, **greedy})
            ollama = {"model": MODEL, "stream": stream, "options": {"num_predict": 6, "temperature": 0}}
            fleet.same("/api/chat", {"messages": chat, **ollama})
            fleet.same("/api/generate", {"prompt": text(200 + number), **ollama})
    fleet.same("/v1/completions", {"prompt": text(300), "max_tokens": 5, "temperature": 1, "seed": 7, "n": 3})
    assert fleet.router.metric("penstock_router_handovers_total") >= 16
    assert fleet.counted(fleet.decode, "penstock_kv_transfer_moved_blocks_total") > 100


def test_short_prompts_stay_where_they_are_answered(fleet: Fleet) -> None:
    before = fleet.counted(fleet.decode, "penstock_kv_transfer_fetches_total")
    fleet.same("/v1/completions", {"prompt": "short", "max_tokens": 4, "temperature": 0})
    assert fleet.counted(fleet.decode, "penstock_kv_transfer_fetches_total") == before


def test_a_client_cannot_name_a_peer(fleet: Fleet) -> None:
    """Neither through the router, which passes no such header on, nor to a replica, which believes its router alone."""
    nobody = "127.0.0.1:9/" + "0" * 32 + "/c"
    headers = {"x-penstock-peer": nobody, "x-penstock-prefill": "1", "x-penstock-relay": "k 1 - 0"}
    before = fleet.counted(fleet.decode, "penstock_kv_transfer_faults_total")
    with fleet.router.http(headers=headers) as http:
        body = {"prompt": text(400), "max_tokens": 3, "temperature": 0}
        assert json.loads(http.post("/v1/completions", json=body).text)["choices"]
    assert httpx.post(fleet.decode.url + "/v1/completions", json=body, headers=headers).status_code == 401
    assert fleet.counted(fleet.decode, "penstock_kv_transfer_faults_total") == before


@pytest.mark.slow
def test_nobody_notices_engines_that_are_killed(fleet: Fleet) -> None:
    """Of the replica that computes prompts and of the one that answers, in turn, wherever requests under way are just then."""
    over = threading.Event()
    draw, kills = Random(5), []

    def ask(seed: int) -> None:
        body = {"prompt": text(seed, 700), "max_tokens": 12, "temperature": 0, "stream": bool(seed % 2)}
        fleet.same("/v1/completions", body)

    def kill() -> None:
        while not over.wait(draw.uniform(0.0, 0.3)):
            with fleet.router.http() as http:
                if http.get("/router/replicas").text.count('"ready"') < 2:
                    continue  # both gone at once is another matter
            server = (fleet.prefill, fleet.decode)[len(kills) % 2]
            os.kill(server.engine_pid, signal.SIGKILL)
            kills.append(server)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(4) as clients:
            for begin in range(1000, 1400, 8):
                list(clients.map(ask, range(begin, begin + 8)))
                if len(kills) >= 6:
                    break
    finally:
        over.set()
        killer.join()
    assert len(kills) >= 4


@pytest.mark.slow
def test_a_replica_changes_its_role_under_load_and_nothing_is_lost() -> None:
    """Three replicas for both, each at an address of its own; long prompts come beside answers until one of them computes
    prompts alone. Every answer, before, meanwhile and after, is what one server says."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        alone = stack.enter_context(serving(*FLAGS, model=MODEL))
        patch.setenv("PENSTOCK_REPLICA_KEY", KEY)
        hosts = [("--role", "both", "--host", f"127.0.0.{number}") for number in (1, 2, 3)]
        replicas = started_together(stack, [serving(*FLAGS, *host, model=MODEL, is_real=True) for host in hosts])
        flags = ("--policy", "prefix-reported", "--handover", "retune", "slow-start-s=0", "wait-s=120")
        urls = [word for server in replicas for word in ("--replica", server.url)]
        router = stack.enter_context(routing(*urls, *flags, servers=replicas, PENSTOCK_REPLICA_KEY=KEY))
        fleet = Fleet(router, replicas[0], replicas[1], alone)

        def has_changed() -> bool:
            with router.http() as http:
                return any(one["role"] == "prefill" for one in http.get("/router/replicas").json()["replicas"])

        def ask(seed: int) -> None:
            is_long = not seed % 4
            size, num_tokens = (2500, 4) if is_long else (200, 120)
            fleet.same("/v1/completions", {"prompt": text(seed, size), "max_tokens": num_tokens, "temperature": 0})

        end_s, is_over = time.monotonic() + PATIENCE_S, threading.Event()

        def go_on(client: int) -> int:
            """One question after the other, 36 more once a replica has changed."""
            count = 0
            while not is_over.is_set():
                ask(client + 12 * count)
                count += 1
            for more in range(3):
                ask(client + 12 * (count + more))
            return count

        with ThreadPoolExecutor(12) as clients:
            asking = [clients.submit(go_on, client) for client in range(12)]
            try:
                while not has_changed():
                    assert time.monotonic() < end_s, "no replica has changed its role"
                    assert not [one.result() for one in asking if one.done()], "no client ends before one has"
                    time.sleep(0.2)
            finally:
                is_over.set()
            assert sum(one.result() for one in asking) > 12
        assert router.metric("penstock_router_handovers_total") > 0
