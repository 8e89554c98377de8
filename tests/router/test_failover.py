"""A replica that dies in mid-sentence is replaced, and its client sees one answer: the same as if nothing had happened."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.router.service import Service, service
from tests.server.serving import chat_text, user

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Threads that carry bytes are cut off in mid-call when a wire is."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Service]:
    with service("--policy", "round-robin", "slow-start-s=0") as running:
        yield running


def events(http: httpx.Client, path: str, body: dict, cut_after: int = 10**9, wires=()) -> list:
    """The events of a stream; the way to the replica that answers is cut after so many."""
    found = []
    with http.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        by_name = dict(zip(("r0", "r1"), wires))
        name = answer.headers["x-penstock-route"].partition(";")[0]
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == cut_after:
                    by_name[name].cut()
            assert not line.startswith(":t"), "marks are the router's alone"
    return found


def texts(found: list, num_choices: int = 1) -> list[str]:
    parts = [""] * num_choices
    for event in found:
        for choice in event["choices"]:
            parts[choice["index"]] += choice["delta"].get("content") or ""
    return parts


def drawn(found: list) -> list[str]:
    """Tokens that log probabilities name."""
    choices = [choice for event in found for choice in event["choices"] if choice["logprobs"]]
    return [entry["token"] for choice in choices for entry in choice["logprobs"]["content"]]


CASES = [
    {"max_tokens": 100, "temperature": 0},
    {"max_tokens": 100, "temperature": 1, "seed": 7},
    {"max_tokens": 100, "temperature": 1, "seed": 7, "n": 2},
    {"max_tokens": 100, "temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"max_tokens": 100, "temperature": 0, "stream_options": {"include_usage": True}},
    {"max_tokens": 100, "temperature": 1, "seed": 3, "presence_penalty": 1.0, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(name for name in case if name != "max_tokens"))
def test_cut_in_mid_stream_is_as_undisturbed(pair, case):
    body = {"messages": user("tell me a story"), **case}
    with pair.http() as http:
        calm = events(http, "/v1/chat/completions", body)
        before = pair.metric("penstock_router_failovers_total")
        stormy = events(http, "/v1/chat/completions", body, 8, pair.wires)
        assert pair.metric("penstock_router_failovers_total") == before + 1
        num_choices = case.get("n", 1)
        assert texts(stormy, num_choices) == texts(calm, num_choices)
        assert len({(event["id"], event["created"]) for event in stormy}) == 1, "one answer has one id"
        logprobs = [drawn(found) for found in (calm, stormy)]
        assert logprobs[0] == logprobs[1]
        if "stream_options" in case:
            usages = [found[-1]["usage"] for found in (calm, stormy)]
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            assert [usages[0][name] for name in names] == [usages[1][name] for name in names]
        ready(pair, http)


def ready(pair: Service, http: httpx.Client) -> None:
    while http.get("/router/replicas").text.count('"state":"ready"') < 2:
        time.sleep(0.05)


def test_an_unseeded_answer_goes_on_too(pair):
    with pair.http() as http:
        body = {"messages": user("anything"), "max_tokens": 100, "temperature": 1}
        found = events(http, "/v1/chat/completions", body, 8, pair.wires)
        assert found[-1]["choices"][0]["finish_reason"] == "length"
        ready(pair, http)


def test_the_best_of_several_are_the_same_though_cut_while_they_are_drawn(pair):
    body = {"messages": user("tell me a story"), "max_tokens": 400, "temperature": 1, "seed": 7, "best_of": 3, "n": 2}
    with pair.http() as http:
        calm = events(http, "/v1/chat/completions", body)
        before = pair.metric("penstock_router_failovers_total")
        stormy = events(http, "/v1/chat/completions", body, 1, pair.wires)
        assert pair.metric("penstock_router_failovers_total") == before + 1
        assert texts(stormy, 2) == texts(calm, 2)
        assert all(texts(calm, 2))
        ready(pair, http)


@pytest.mark.slow
def test_a_server_killed_whole_loses_nothing_either():
    """Neither a stream nor the many whole answers under way, more than there are retries in the budget."""
    with (
        service("--policy", "round-robin", "slow-start-s=0") as pair,
        pair.http() as http,
        ThreadPoolExecutor(32) as threads,
    ):
        found = []
        body = {"messages": user("hello"), "max_tokens": 100, "temperature": 0, "stream": True}

        def whole(number: int) -> tuple[int, str]:
            asked = body | {"messages": user(f"hello {number}"), "stream": False, "max_tokens": 60}
            with pair.http() as own:
                answer = own.post("/v1/chat/completions", json=asked)
            return number, answer.json()["choices"][0]["message"]["content"]

        asking = [threads.submit(whole, number) for number in range(32)]
        while pair.metric("penstock_router_open") < 32 and not any(one.done() for one in asking):
            time.sleep(0.01)
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            number = int(answer.headers["x-penstock-route"][1])
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    found.append(json.loads(line.removeprefix("data: ")))
                    if len(found) == 12:
                        engine = pair.servers[number].engine_pid
                        os.kill(pair.servers[number].process.pid, signal.SIGKILL)
                        os.kill(engine, signal.SIGKILL)
        assert texts(found) == [chat_text("hello", 100)]
        for number, text in (one.result() for one in asking):
            assert text == chat_text(f"hello {number}", 60)
        for _ in range(4):
            answer = http.post("/v1/chat/completions", json=body | {"stream": False})
            assert answer.json()["choices"][0]["message"]["content"] == chat_text("hello", 100)
        assert pair.stop() == 0
