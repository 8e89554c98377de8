"""Routers beside nginx as the floor: one core for the router, the other for its client and the servers behind it.

    python -m benchmarks.router.floor --other-python VENV/bin/python --json FILE

Client (`wrk`) and servers (nginx with a canned answer) are native, so that neither is what is measured; Debian has both as
`wrk` and `nginx-light`. Contenders take turns, `--rounds` times, medians are told: requests a second with many connections, and
what each adds to the median latency of one request at a time.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.router.overhead import ANSWER, BODY, contenders, cpu_s, free_port, ready, rss_mib

NGINX = """
worker_processes 1;
daemon off;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000000;
  {rest}
}}
"""
STUB = """
  server {{
    listen 127.0.0.1:{first}; listen 127.0.0.1:{second};
    default_type application/json;
    location / {{ return 200 '{models}'; }}
    location /metrics {{ return 200 'vllm:num_requests_waiting 0\\n'; }}
    location /v1/chat/completions {{ return 200 '{answer}'; }}
  }}
"""
PROXY = """
  upstream engines {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
"""
MODELS = {
    "object": "list",
    "data": [{"id": "stub", "object": "model"}],
    "status": "ready",
    "model_path": "stub",
}
SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer sk-test-key-1234"
wrk.body = [[{body}]]
"""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def nginx(folder: Path, name: str, rest: str, core: int) -> "subprocess.Popen[bytes]":
    config = folder / f"{name}.conf"
    config.write_text(NGINX.format(folder=folder, name=name, rest=rest))
    return subprocess.Popen([*pinned(core), shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(config)])


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def load(port: int, script: Path, seconds: float, connections: int) -> dict[str, float]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script)]
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    text = subprocess.run([*pinned(1), *command, address], capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    times = {
        share: float(value) * UNITS[unit] for share, value, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s)", text)
    }
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert rate, text
    assert not refused, text
    return {"requests_per_s": float(rate.group(1)), "p50_ms": times["50"], "p99_ms": times["99"]}


def measured(options: argparse.Namespace, folder: Path, running: dict[str, tuple[int, int]]) -> dict[str, dict]:
    """`running`: process and port by name; the direct way has no process."""
    script = folder / "ask.lua"
    script.write_text(SCRIPT.format(body=BODY.decode()))
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for _ in range(options.rounds):
        for name, (pid, port) in running.items():
            alone = load(port, script, options.seconds, 1)
            before, start_s = cpu_s(pid) if pid else 0.0, time.monotonic()
            many = load(port, script, options.seconds, options.connections)
            spent = (cpu_s(pid) if pid else 0.0) - before
            count = many["requests_per_s"] * (time.monotonic() - start_s)
            rows[name].append(
                {
                    "requests_per_s": many["requests_per_s"],
                    "p50_ms_alone": alone["p50_ms"],
                    "p99_ms_alone": alone["p99_ms"],
                    "cpu_us_per_request": spent / count * 1e6,
                    "rss_mib": rss_mib(pid) if pid else 0.0,
                }
            )
    found = {
        name: {key: round(statistics.median(row[key] for row in own), 3) for key in own[0]}
        for name, own in rows.items()
    }
    for own in found.values():
        own["added_p50_ms"] = round(own["p50_ms_alone"] - found["direct"]["p50_ms_alone"], 3)
    return found


async def main(options: argparse.Namespace) -> None:
    first, second, port = free_port(), free_port(), free_port()
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            stub = STUB.format(first=first, second=second, models=json.dumps(MODELS), answer=json.dumps(ANSWER))
            started.append(nginx(folder, "stub", stub, 1))
            await ready(first, started[0])
            proxy = nginx(folder, "proxy", PROXY.format(first=first, second=second, port=port), 0)
            started.append(proxy)
            await ready(port, proxy)
            running = {"direct": (0, first), "nginx": (proxy.pid, port)}
            for name, (command, own) in contenders([first, second], folder, [], options.other_python).items():
                log = (folder / f"{name}.log").open("wb")
                process = subprocess.Popen(
                    [*pinned(0), *command], stdout=log, stderr=log, start_new_session=True, env=environment
                )
                started.append(process)
                try:
                    await ready(own, process, options.start_s)
                    running[name] = (process.pid, own)
                except RuntimeError as error:
                    print(f"{name}: left out, {error}: {(folder / f'{name}.log').read_text()[-400:]}", file=sys.stderr)
            found = measured(options, folder, running)
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait()
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start-s", type=float, default=60.0)
    parser.add_argument("--other-python")
    parser.add_argument("--json", type=Path)
    asyncio.run(main(parser.parse_args()))
