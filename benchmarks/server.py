"""How many tokens a second the front carries: many streams at once from a model that costs nothing.

    python benchmarks/server.py [--streams 256] [--tokens 400] [--step-ms 8]
    python benchmarks/server.py --dialect anthropic           # or ollama, responses
    python benchmarks/server.py --tokens 8 --calls 400        # a hundred thousand calls: does memory grow?

Starts `penstock serve` over the scripted runner and reads the streams with a client that does as little as it can: it counts
events and looks at the last of each stream. Meanwhile /livez is asked fifty times a second, on a connection of its own, and
memory is looked at twice a second. Everything runs on the same cores, so the client's cost is told too. Prints one JSON
object; `--json FILE` appends it to the runs recorded there.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

ROOT = Path(__file__).parent.parent
PROBE_S = 0.02
LOOK_S = 0.5
WARM_UP = 0.2
"""Share of a run in which memory may still grow."""


MESSAGES = [{"role": "user", "content": "go"}]


class StreamKind(NamedTuple):
    """How one dialect asks for a stream, and what each of its token events has in it."""

    path: str
    body: Callable[[int], dict[str, Any]]
    event: bytes
    num_empty: int = 0
    """Events of that kind in a stream that carry no token."""


DIALECTS = {
    "openai": StreamKind(
        "/v1/chat/completions", lambda n: {"messages": MESSAGES, "max_tokens": n, "stream": True}, b'"content":"', 1
    ),
    "anthropic": StreamKind(
        "/v1/messages",
        lambda n: {"model": "default", "messages": MESSAGES, "max_tokens": n, "stream": True},
        b'"type":"text_delta"',
    ),
    "ollama": StreamKind(
        "/api/chat",
        lambda n: {"model": "default", "messages": MESSAGES, "options": {"num_predict": n}, "stream": True},
        b'"content":"',
        1,
    ),
    "responses": StreamKind(
        "/v1/responses",
        lambda n: {"input": "go", "max_output_tokens": n, "stream": True, "store": False},
        b'"type":"response.output_text.delta"',
    ),
}


class Reader(asyncio.Protocol):
    """One connection that asks for one stream after another and counts what it is sent."""

    def __init__(self, kind: StreamKind, num_tokens: int, num_calls: int, done: asyncio.Future[None]) -> None:
        body = json.dumps(kind.body(num_tokens)).encode()
        self._request = (
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (kind.path.encode(), len(body))
        ) + body
        self._event = kind.event
        self.num_left = num_calls
        self.done = done
        self._tail = b""
        self._start_s = 0.0
        self.num_events = 0
        self.num_failed = 0
        self.first_s: list[float] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._start_s = time.monotonic()
        self._is_first = True
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._is_first:
            self._is_first = False
            self.first_s.append(time.monotonic() - self._start_s)
            self.num_failed += not data.startswith(b"HTTP/1.1 200")
        self.num_events += data.count(self._event)
        self._tail = (self._tail + data)[-16:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self.num_left -= 1
            self._tail = b""
            if self.num_left:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def probe(host: str, port: int, times: list[float]) -> None:
    """Ask /livez for ever."""
    reader, writer = await asyncio.open_connection(host, port)
    while True:
        start_s = time.monotonic()
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b'"}')
        times.append(time.monotonic() - start_s)
        await asyncio.sleep(PROBE_S)


async def look(readers: list[Reader], pids: list[int], seen: list[tuple[float, int, int, float]]) -> None:
    """Note the time, the events so far, the calls so far and the MiB that the processes hold, for ever."""
    num_calls = sum(reader.num_left for reader in readers)
    while True:
        num_ended = num_calls - sum(reader.num_left for reader in readers)
        seen.append((time.monotonic(), sum(reader.num_events for reader in readers), num_ended, resident_mib(pids)))
        await asyncio.sleep(LOOK_S)


async def read_all(host: str, port: int, pids: list[int], arguments: argparse.Namespace) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    num_streams, num_tokens, num_calls = arguments.streams, arguments.tokens, arguments.calls
    kind = DIALECTS[arguments.dialect]
    readers = [Reader(kind, num_tokens, num_calls, loop.create_future()) for _ in range(num_streams)]
    lives: list[float] = []
    seen: list[tuple[float, int, int, float]] = []
    watchers = [asyncio.create_task(probe(host, port, lives)), asyncio.create_task(look(readers, pids, seen))]
    start_s = time.monotonic()
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, host, port)
    await asyncio.gather(*(reader.done for reader in readers))
    seconds = time.monotonic() - start_s
    for watcher in watchers:
        watcher.cancel()
    num_events = sum(reader.num_events - num_calls * kind.num_empty for reader in readers)
    firsts = [first for reader in readers for first in reader.first_s]
    figures = {
        "tokens_per_s": round(num_streams * num_tokens * num_calls / seconds),
        "events_per_token": round(num_events / (num_streams * num_tokens * num_calls), 4),
        "seconds": round(seconds, 3),
        "failed": sum(reader.num_failed for reader in readers),
        "ttft_p50_ms": milliseconds(firsts, 0.5),
        "ttft_p99_ms": milliseconds(firsts, 0.99),
        "livez_p50_ms": milliseconds(lives, 0.5),
        "livez_p99_ms": milliseconds(lives, 0.99),
        "livez_max_ms": milliseconds(lives, 1.0),
        "memory_mib": round(seen[-1][3]),
    }
    if num_calls >= 50:
        figures["mib_per_100k_calls"] = round(
            slope([look for look in seen if look[0] - start_s > WARM_UP * seconds]), 3
        )
    return figures


def slope(seen: list[tuple[float, int, int, float]]) -> float:
    """The median growth between any two looks (Theil and Sen's), for a hundred thousand calls."""
    pairs = combinations(seen[:: max(len(seen) // 200, 1)], 2)
    return 1e5 * statistics.median((b[3] - a[3]) / (b[2] - a[2]) for a, b in pairs if b[2] > a[2])


def milliseconds(times: list[float], fraction: float) -> float:
    ordered = sorted(times)
    return round(1000 * ordered[min(int(len(ordered) * fraction), len(ordered) - 1)], 2)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: list[int]) -> float:
    num_pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return num_pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "penstock", "serve", f"scripted:step_ms={arguments.step_ms}", "--port", "0"]
    with subprocess.Popen([*command, "--num-blocks", "16384"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        banner = ""
        for line in server.stdout or ():
            banner += line
            if "docs:" in line:
                break
        found = re.search(r"http://([^:]+):(\d+)", banner)
        if found is None:
            raise SystemExit(f"the server did not start: {banner}")
        engine = int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0])
        pids = [server.pid, engine]
        before = [cpu_s(pid) for pid in pids]
        own_s = time.process_time()
        figures = uvloop.run(read_all(found[1], int(found[2]), pids, arguments))
        spent = [cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
        spent.append(time.process_time() - own_s)
        num_tokens = arguments.streams * arguments.tokens * arguments.calls
        for name, seconds in zip(("server", "engine", "client"), spent, strict=True):
            figures[f"{name}_us_per_token"] = round(1e6 * seconds / num_tokens, 2)
        server.terminate()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--calls", type=int, default=1, help="streams one after another on each connection")
    parser.add_argument("--step-ms", type=float, default=8.0, help="time a step of the model takes at least")
    parser.add_argument("--dialect", choices=tuple(DIALECTS), default="openai")
    parser.add_argument("--json", type=Path, help="append the figures to the runs in this file")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    figures = {
        name: getattr(arguments, name) for name in ("dialect", "streams", "tokens", "calls", "step_ms")
    } | measure(arguments)
    print(json.dumps(figures))
    if arguments.json:
        record = (
            json.loads(arguments.json.read_text()) if arguments.json.exists() else {"benchmark": "server", "runs": []}
        )
        record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        record["runs"].append(figures)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
