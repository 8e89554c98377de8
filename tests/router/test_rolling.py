"""Replicas of one machine: a rolling restart under load loses nothing and refuses nobody; none outlives its router."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.machine import PATIENCE_S
from tests.server.serving import ROOT, chat_text, user


@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_nothing(tmp_path):
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "penstock", "serve", "oracle:", "--replicas", "2", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    wrong: list[object] = []
    is_over = threading.Event()

    def heard() -> str:
        return (tmp_path / "log").read_text()

    def wait_for(text: str, count: int) -> None:
        end_s = time.monotonic() + 120
        while heard().count(text) < count and time.monotonic() < end_s:
            time.sleep(0.1)
        assert heard().count(text) >= count, heard()

    def ask(number: int, url: str) -> None:
        content, body = f"question {number}", {"max_tokens": 20, "temperature": 0, "stream": True}
        with httpx.Client(base_url=url, timeout=60.0, verify=False) as http:
            while not is_over.is_set():
                text = ""
                with http.stream("POST", "/v1/chat/completions", json=body | {"messages": user(content)}) as answer:
                    for line in answer.iter_lines():
                        if line.startswith("data: {"):
                            event = json.loads(line.removeprefix("data: "))
                            text += "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))
                if text != chat_text(content, 20):
                    wrong.append((answer.status_code, text))

    try:
        url = process.stdout.readline().split()[3].rstrip(",")
        wait_for("is ready", 2)
        threads = [threading.Thread(target=ask, args=(number, url)) for number in range(8)]
        for thread in threads:
            thread.start()
        os.kill(process.pid, signal.SIGHUP)
        wait_for("all replicas have been restarted", 1)
        is_over.set()
        for thread in threads:
            thread.join()
        assert not wrong
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        log.close()


def test_replicas_end_with_a_router_that_is_killed():
    command = [sys.executable, "-m", "penstock", "serve", "oracle:", "--replicas", "2", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            num_ready = 0
            while num_ready < 2:
                line = process.stderr.readline()
                assert line, "it ended"
                num_ready += "is ready" in line
            process.kill()
            process.communicate(timeout=PATIENCE_S)  # their errors go where its own do, until the last has ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
