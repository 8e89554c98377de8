"""How many tokens a second the front carries: many streams at once from a model that costs nothing.

    python benchmarks/server.py [--streams 256] [--tokens 400] [--step-ms 12]

Starts `penstock serve` over the scripted runner and reads the streams with a client that does as little as it can: it counts
events and looks at the last of each stream. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import uvloop

ROOT = Path(__file__).parent.parent


class Reader(asyncio.Protocol):
    """One connection that asks for one stream after another and counts what it is sent."""

    def __init__(self, body: bytes, num_calls: int, done: asyncio.Future[None]) -> None:
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        ) + body
        self._num_left = num_calls
        self._done = done
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
        self.num_events += data.count(b'"content":"')
        self._tail = (self._tail + data)[-16:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self._num_left -= 1
            self._tail = b""
            if self._num_left:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def read_all(host: str, port: int, num_streams: int, num_tokens: int, num_calls: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    body = json.dumps(
        {"messages": [{"role": "user", "content": "go"}], "max_tokens": num_tokens, "stream": True}
    ).encode()
    readers = [Reader(body, num_calls, loop.create_future()) for _ in range(num_streams)]
    start_s = time.monotonic()
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, host, port)
    await asyncio.gather(*(reader._done for reader in readers))
    seconds = time.monotonic() - start_s
    # Each stream's first event has an empty content and carries no token.
    num_tokens_read = sum(reader.num_events - num_calls for reader in readers)
    firsts = sorted(first for reader in readers for first in reader.first_s)
    return {
        "events": num_tokens_read,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(num_streams * num_tokens * num_calls / seconds),
        "failed": sum(reader.num_failed for reader in readers),
        "ttft_p50_s": round(firsts[len(firsts) // 2], 4),
        "ttft_p99_s": round(firsts[int(len(firsts) * 0.99)], 4),
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--calls", type=int, default=2, help="streams one after another on each connection")
    parser.add_argument("--step-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "penstock", "serve", f"scripted:step_ms={arguments.step_ms}", "--port", "0"]
    with subprocess.Popen([*command, "--num-blocks", "16384"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        banner = ""
        for line in server.stdout:
            banner += line
            if "docs:" in line:
                break
        found = re.search(r"http://([^:]+):(\d+)", banner)
        assert found, banner
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        before = cpu_s(server.pid), cpu_s(int(children[0]))
        figures = uvloop.run(read_all(found[1], int(found[2]), arguments.streams, arguments.tokens, arguments.calls))
        after = cpu_s(server.pid), cpu_s(int(children[0]))
        own = resource.getrusage(resource.RUSAGE_SELF)
        figures |= {
            "streams": arguments.streams,
            "server_cpu_s": round(after[0] - before[0], 2),
            "engine_cpu_s": round(after[1] - before[1], 2),
            "client_cpu_s": round(own.ru_utime + own.ru_stime, 2),
            "cores": os.cpu_count() or 0,
        }
        print(json.dumps(figures))
        server.terminate()


if __name__ == "__main__":
    main()
