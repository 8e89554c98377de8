"""Full disks and closed pipes: what serves goes on, what is lost is counted and told, and it heals by itself."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.machine import PATIENCE_S, free_port
from tests.server.serving import ROOT, Server, oracle_text, serving

SIZE = resource.RLIMIT_FSIZE
FULL = (4096, resource.RLIM_INFINITY)
"""No file may grow beyond it: what is longer already cannot be written to, as on a disk that is full."""
EMPTY = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def limit(server: Server, size: tuple[int, int]) -> None:
    for pid in (server.process.pid, server.engine_pid):
        resource.prlimit(pid, SIZE, size)


def ask(server: Server, number: int) -> None:
    body = {"prompt": f"call {number}", "max_tokens": 8, "temperature": 0}
    response = server.post("/v1/completions", body)
    assert response.json()["choices"][0]["text"] == oracle_text(f"call {number}", 8)


def test_a_full_disk_costs_no_answer(tmp_path: Path) -> None:
    record, steps = tmp_path / "record", tmp_path / "steps"
    flags = ("--record", str(record), "--step-log", str(steps), "--data-dir", str(tmp_path / "data"))
    with serving(*flags, is_real=True) as server:
        for number in range(20):
            ask(server, number)
        limit(server, FULL)
        for number in range(30):
            ask(server, number)
        kept = server.post("/v1/conversations", {})
        assert (kept.status_code, kept.json()["error"]["code"]) == (507, "storage_unavailable")
        form = {"file": ("lines.jsonl", b"x" * 50_000)}
        with server.http() as http:
            assert http.post("/v1/files", files=form, data={"purpose": "batch"}).status_code == 507
        answered = server.post("/v1/responses", {"input": "abc", "max_output_tokens": 4})
        assert (answered.status_code, answered.json()["store"]) == (200, False), "it says that it is not kept"
        assert answered.json()["store_error"]["code"] == "storage_unavailable"
        told = server.post("/v1/responses", {"input": "abc", "max_output_tokens": 4, "stream": True}).text
        last = json.loads(told.strip().rpartition("data: ")[2])["response"]
        assert (last["store"], "store_error" in last) == (False, True)
        num_lost = server.metric("penstock_record_lines_lost_total")
        assert num_lost > 0
        limit(server, EMPTY)
        assert server.post("/v1/conversations", {}).status_code == 200
        ask(server, 1)
        log = server.errors.read_text()
        assert "--record cannot be written" in log
        assert f"--record can be written again; {num_lost:.0f} lines were lost" in log
        assert server.stop() == 0
    for path in (record, steps):
        assert all(json.loads(line) for line in path.read_text().splitlines()), "every line is whole"


def start(port: int, stdout: int | None, stderr: int | None) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "penstock", "serve", "oracle:", "--port", str(port), "--num-blocks", "64"]
    closing = "" if stderr is not None else "2>&-"
    command = ["bash", "-c", f'exec "$@" {closing}', "bash", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize("kind", ["full", "closed pipe", "no stderr"])
def test_nobody_has_to_read_what_is_printed(kind: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    streams = {"full": (full, full), "closed pipe": (writer, writer), "no stderr": (subprocess.DEVNULL, None)}[kind]
    port = free_port()
    process = start(port, *streams)
    url = f"http://127.0.0.1:{port}"
    try:
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(transport=transport, timeout=60.0) as http:
            body = {"prompt": "abc", "max_tokens": 4, "temperature": 0}
            while (response := http.post(url + "/v1/completions", json=body)).status_code == 503:
                pass
            assert response.json()["choices"][0]["text"] == oracle_text("abc", 4)
            metrics = http.get(url + "/metrics").text
            assert re.search(r"penstock_log_lines_lost_total\{[^}]*\} \d", metrics)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(writer)
        os.close(full)
