"""A server of any checkout, started as people start it and watched from outside: /livez, memory, CPU, a polite client.

Latencies count from when a probe was due, so that a server that stalls for a second shows in twenty of them and not in one.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

KEYS = ("attacker-key-of-some-length", "polite-key-of-some-length")
PROBE_S = 0.05
NUM_PROBES = 3
LOOK_S = 0.05
IDLE_S = 0.5
SETTLE_S = 20.0
FAVOUR = -19


@dataclass
class Served:
    """A running server, by its process and address."""

    process: "subprocess.Popen[str]"
    host: str
    port: int

    @property
    def pids(self) -> list[int]:
        """The server's and those of its children, as far as they live."""
        found = [self.process.pid]
        for pid in found:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    @property
    def first_mib(self) -> float:
        """Of the process that clients meet, alone."""
        return _of_process(self.process.pid, _resident_mib)

    def wait(self) -> None:
        """Until it is ready: replicas behind a router start after it."""
        request = urllib.request.Request(f"http://{self.host}:{self.port}/readyz")
        while True:
            with suppress(OSError), urllib.request.urlopen(request, timeout=5):
                return
            time.sleep(0.1)

    @property
    def cpu_s(self) -> float:
        """Of the processes that live now."""
        return sum(_of_process(pid, _cpu_s) for pid in self.pids)

    @property
    def cpu_by_process(self) -> list[float]:
        """The server's first, then those of its children."""
        return [_of_process(pid, _cpu_s) for pid in self.pids]

    @property
    def resident_mib(self) -> float:
        return sum(_of_process(pid, _resident_mib) for pid in self.pids)


@contextmanager
def serving(
    tree: Path, model: str, *flags: str, keys: Sequence[str] = KEYS, errors: str = os.devnull
) -> Iterator[Served]:
    """`penstock serve` out of a checkout, ended when the block is left."""
    with suppress(PermissionError):  # whatever else this machine does meanwhile is not what is measured
        os.setpriority(os.PRIO_PROCESS, 0, FAVOUR)
    words = [sys.executable, "-m", "penstock", "serve", model, "--port", "0", *flags]
    for key in keys:
        words += ["--api-key", key]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with (
        open(errors, "w") as log,
        subprocess.Popen(words, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            banner = ""
            for line in process.stdout or ():
                banner += line
                if "docs:" in line or "routes on" in line:
                    break
            found = re.search(r"http://([^:/\s]+):(\d+)", banner)
            if found is None:
                raise SystemExit(f"the server of {tree} did not start: {banner}")
            served = Served(process, found[1], int(found[2]))
            served.wait()
            with favoured(*served.pids):
                yield served
        finally:
            process.kill()


@contextmanager
def favoured(*pids: int) -> Iterator[None]:
    """Sessions of these processes and of this one come first, where the system shares processors out by session: then niceness
    counts inside a session alone.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is undone then too
    for pid in (os.getpid(), *pids):
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(FAVOUR))
    try:
        yield
    finally:
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text("0")


@dataclass
class Watch:
    """What was seen of a server while something was done to it."""

    served: Served
    lives_s: list[float] = field(default_factory=list)
    polite_s: list[float] = field(default_factory=list)
    polite: "Counter[str]" = field(default_factory=Counter)
    """How the polite client's calls ended: by status, or `lost`."""
    peak_mib: float = 0.0
    first_peak_mib: float = 0.0
    is_over: bool = False
    """A cancellation can be lost while a probe's answer arrives: who watches looks here too."""

    async def probe(self, offset_s: float = 0.0) -> None:
        """Ask /livez for ever, twenty times a second."""
        connection = None
        start_s = time.monotonic() + offset_s
        number = 0
        while not self.is_over:
            due_s = start_s + number * PROBE_S
            number += 1
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            try:
                if connection is None:
                    connection = await asyncio.open_connection(self.served.host, self.served.port)
                reader, writer = connection
                writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await asyncio.wait_for(reader.readuntil(b'"}'), 30.0)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                connection = None
            self.lives_s.append(time.monotonic() - due_s)

    async def look(self) -> None:
        while not self.is_over:
            self.peak_mib = max(self.peak_mib, self.served.resident_mib)
            self.first_peak_mib = max(self.first_peak_mib, self.served.first_mib)
            await asyncio.sleep(LOOK_S)

    async def be_polite(self, pause_s: float = 0.25) -> None:
        """Ask for a short answer now and then, with a key of one's own."""
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        request = post("/v1/chat/completions", json.dumps(body).encode(), KEYS[1])
        while not self.is_over:
            start_s = time.monotonic()
            try:
                status, _ = await asyncio.wait_for(ask(self.served.host, self.served.port, request), 60.0)
                self.polite[str(status)] += 1
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.polite["lost"] += 1
            self.polite_s.append(time.monotonic() - start_s)
            await asyncio.sleep(pause_s)

    async def settle(self) -> None:
        """Until the server has nothing more to do, or some time has passed."""
        start_s = time.monotonic()
        before_s = self.served.cpu_s
        while time.monotonic() - start_s < SETTLE_S:
            await asyncio.sleep(IDLE_S)
            now_s = self.served.cpu_s
            if now_s - before_s < 0.3 * IDLE_S:
                break
            before_s = now_s
        await asyncio.sleep(1.0)


def post(path: str, body: bytes, key: str = "", version: str = "1.1") -> bytes:
    key_line = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"{key_line}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(host: str, port: int, request: bytes) -> tuple[int, bytes]:
    """One request on a connection of its own: status and body."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        await writer.drain()
        return await answer(reader)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in head:
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        return status, b"".join(parts)
    found = re.search(rb"content-length: (\d+)", head)
    return status, await (reader.readexactly(int(found[1])) if found else reader.read())


def percentile_ms(times_s: Sequence[float], fraction: float) -> float | None:
    if not times_s:
        return None
    ordered = sorted(times_s)
    return round(1000 * ordered[min(int(len(ordered) * fraction), len(ordered) - 1)], 1)


def _of_process(pid: int, figure) -> float:
    try:
        return figure(pid)
    except (OSError, IndexError):
        return 0.0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
