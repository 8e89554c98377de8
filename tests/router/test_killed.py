"""Two real replicas, one of them killed every ten seconds: nothing is lost, and every answer is the undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.real import DEFAULT
from tests.server.serving import ROOT, user

SECONDS = 120.0
EVERY_S = 10.0
NUM_CLIENTS = 8
NUM_TOKENS = 24
QUESTIONS = [f"Tell me about the number {number}." for number in range(25)]


def children(pid: int) -> list[int]:
    try:
        direct = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*direct, *(deeper for one in direct for deeper in children(one))]


def ask(http: httpx.Client, question: str, stream: bool) -> str:
    """The answer's text; raises for an answer that is none."""
    body = {"messages": user(question), "max_tokens": NUM_TOKENS, "temperature": 0, "stream": stream}
    if not stream:
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]
    text, finish = "", None
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    finish = choice["finish_reason"] or finish
    assert finish is not None, "it ended without an end"
    return text


@pytest.mark.slow
def test_replicas_that_are_killed_all_the_time_lose_nothing(tmp_path, capsys):
    command = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        DEFAULT,
        "--replicas",
        "2",
        "--port",
        "0",
        "--num-blocks",
        "512",
    ]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    answers: list[float] = []
    wrong: list[object] = []
    is_over = threading.Event()
    try:
        url = process.stdout.readline().split()[3].rstrip(",")
        with httpx.Client(base_url=url, timeout=120.0, verify=False) as http:
            while http.get("/router/replicas").text.count('"state":"ready"') < 2:
                time.sleep(0.1)
            right = {question: ask(http, question, stream=False) for question in QUESTIONS}

        def client(number: int) -> None:
            with httpx.Client(base_url=url, timeout=120.0, verify=False) as http:
                turn = number
                while not is_over.is_set():
                    question, start_s = QUESTIONS[turn % len(QUESTIONS)], time.monotonic()
                    try:
                        text = ask(http, question, stream=turn % 2 == 0)
                    except Exception as error:
                        wrong.append((question, repr(error)))
                    else:
                        if text != right[question]:
                            wrong.append((question, text))
                    answers.append(time.monotonic() - start_s)
                    turn += 1

        threads = [threading.Thread(target=client, args=(number,)) for number in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        num_kills = kill_by_turns(process.pid, time.monotonic() + SECONDS)
        is_over.set()
        for thread in threads:
            thread.join()
        answers.sort()
        with capsys.disabled():
            print(
                f"\n{len(answers)} requests, {num_kills} kills, {len(wrong)} wrong or lost; seconds p50 "
                f"{answers[len(answers) // 2]:.2f}, p99 {answers[int(len(answers) * 0.99)]:.2f}, max {answers[-1]:.2f}"
            )
        assert not wrong, wrong[:3]
        assert num_kills >= SECONDS / EVERY_S - 2
    finally:
        is_over.set()
        process.terminate()
        process.wait(90)
        process.stdout.close()
        log.close()


def kill_by_turns(router_pid: int, end_s: float) -> int:
    """Kill one server with its engine, then wait until both are there again."""
    num_kills = 0
    while time.monotonic() < end_s:
        servers = [int(one) for one in Path(f"/proc/{router_pid}/task/{router_pid}/children").read_text().split()]
        if len(servers) == 2:
            victim = servers[num_kills % 2]
            for pid in (victim, *children(victim)):
                os.kill(pid, signal.SIGKILL)
            num_kills += 1
        time.sleep(EVERY_S)
    return num_kills
