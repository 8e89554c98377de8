"""Memory of a router, and of one with a gateway, over many requests: every prompt another, half of them streamed.

    python -m benchmarks.router.memory --requests 100000 --json FILE

Resident memory is read all the while. A router remembers which prompts it sent where, up to 200,000 blocks in two halves, full
after some 40,000 requests; then one half grows and goes after the other, so the peaks of the four quarters say whether anything
else grows. The slope is that of a straight line through the second half, in MiB a 100,000 requests.
Servers are canned (`overhead.py --stub`), the client is `wrk`, the gateway has keys, prices and a budget in SQLite.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.router.overhead import free_port, ready, rss_mib

ROOT = Path(__file__).parents[2]
SCRIPT = """
local number = os.time() * 100000
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {key}"
function request()
  number = number + 1
  local text = string.rep(string.format("word %d ", number), 60)
  local stream = number % 2 == 0 and "true" or "false"
  local head = '{{"model":"stub","max_tokens":16,"stream":' .. stream
  local body = head .. ',"messages":[{{"role":"user","content":"' .. text .. '"}}]}}'
  return wrk.format("POST", "/v1/chat/completions", nil, body)
end
"""
RULES = """
database = "{folder}/gateway.db"
max_pending = 100000
max_wait_s = 1e6
[prices."*"]
input = 0.001
output = 0.001
[tenants.acme]
budget_usd = 1000000.0
budget_period = "total"
"""


def run(*words: str) -> str:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


async def measured(kind: str, options: argparse.Namespace, folder: Path, ports: list[int]) -> dict:
    port, key, flags = free_port(), "sk-test-key-1234", []
    if kind == "gateway":
        rules = folder / "gateway.toml"
        rules.write_text(RULES.format(folder=folder))
        key = run("keys", "create", "--gateway", str(rules), "--tenant", "acme")
        flags = ["--gateway", str(rules)]
    replicas = [f"--replica=http://127.0.0.1:{one}" for one in ports]
    command = [sys.executable, "-m", "penstock", "route", "--port", str(port), *replicas, *flags]
    with (folder / f"{kind}.log").open("wb") as log:
        router = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    script = folder / f"{kind}.lua"
    script.write_text(SCRIPT.format(key=key))
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    rows: list[tuple[int, float]] = []
    try:
        await listening(port)
        num_done, start_s = 0, time.monotonic()
        while num_done < options.requests:
            load = await asyncio.create_subprocess_exec(
                "wrk", "-t1", "-c32", "-d3s", "-s", str(script), url, stdout=subprocess.PIPE
            )
            text = (await load.communicate())[0].decode()
            assert "Non-2xx" not in text, text
            found = re.search(r"(\d+) requests in", text)
            assert found, text
            num_done += int(found.group(1))
            rows.append((num_done, rss_mib(router.pid)))
        seconds = time.monotonic() - start_s
    finally:
        router.terminate()
        router.wait()
    late = rows[len(rows) // 2 :]
    slope = statistics.linear_regression([count for count, _ in late], [size for _, size in late]).slope
    return {
        "requests": num_done,
        "seconds": round(seconds, 1),
        "first_mib": rows[0][1],
        "last_mib": rows[-1][1],
        "slope_mib_per_100k": round(slope * 1e5, 2),
        "peaks_mib": [round(max(size for _, size in part), 1) for part in quarters(rows)],
        "curve": [[count, round(size, 1)] for count, size in rows[:: max(len(rows) // 20, 1)]],
    }


def quarters(rows: list[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """By requests."""
    total = rows[-1][0] + 1
    return [[row for row in rows if row[0] * 4 // total == number] or rows[:1] for number in range(4)]


async def listening(port: int) -> None:
    end_s = time.monotonic() + 60.0
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.sleep(1.5)  # until replicas have been looked at
            return
        except OSError:
            assert time.monotonic() < end_s, "the router does not listen"
            await asyncio.sleep(0.2)


async def main(options: argparse.Namespace) -> None:
    ports = [free_port(), free_port()]
    words = [sys.executable, "-m", "benchmarks.router.overhead", "--stub"]
    stubs = [subprocess.Popen([*words, str(port)], cwd=ROOT, env=os.environ) for port in ports]
    found = {}
    try:
        for port, stub in zip(ports, stubs):
            await ready(port, stub)
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("router", "gateway"):
                found[kind] = await measured(kind, options, Path(folder), ports)
                if options.json is not None:
                    options.json.write_text(json.dumps(found) + "\n")
    finally:
        for stub in stubs:
            stub.terminate()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    asyncio.run(main(parser.parse_args()))
