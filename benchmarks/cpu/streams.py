"""W5 and W3 through real servers: streaming clients over the loopback, first and later tokens, memory, processor time.

    python benchmarks/cpu/streams.py --server "penstock=python -m penstock serve MODEL --port {port}" --server "NAME=COMMAND"
        [--clients 8] [--requests 8] [--prompt 256] [--tokens 128] [--rounds 3] [--json FILE]

All servers are started, one after the other, and answer a first small request (`start_s` is from starting the command to that
answer's first token). Then they are loaded by turns from one client process, the others stopped meanwhile: random token ids,
greedy, end of text ignored. `--requests` above `--clients` keeps so many under way (64 and 32 are W3). Latencies count from
when a request is sent; TPOT is a stream's time after its first token, a token.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import shlex
import signal
import socket
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

LEAST_TOKEN, MOST_TOKEN = 1000, 40_000
"""Ordinary words of every vocabulary here."""
START_S = 180.0
POLL_S = 0.02
Times = tuple[float, float, float]
"""When a request was sent, when its first token came and when its last."""


class Server:
    """A command that serves at a port, and all the processes it begins."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        begin_s = time.perf_counter()
        self.address = "127.0.0.1", _free_port()
        words = shlex.split(command.replace("{port}", str(self.address[1])))
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            self._wait(begin_s + START_S)
            self.ready_s = time.perf_counter() - begin_s
            _, first_s, _ = asyncio.run(ask(self.address, list(range(1000, 1008)), 2))
        except BaseException:
            self.close()
            raise
        self.start_s = first_s - begin_s
        self.idle_mb = self.peak_mb()

    def _wait(self, end_s: float) -> None:
        while True:
            try:
                with urllib.request.urlopen("http://{}:{}/health".format(*self.address), timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.perf_counter() > end_s:
                    raise SystemExit(f"{self.name} did not start") from None
                time.sleep(POLL_S)

    def pids(self) -> list[int]:
        """Parents before their children."""
        found = [self._process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ask for an end, then see to it: also for those processes that lost their parent."""
        if self._process.poll() is None:
            self.resume()
            pids = self.pids()
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                self._process.wait()

    def cpu_s(self) -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self.pids()]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> list[int]:
        """Of each process."""
        status = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids()]
        return [round(int(text.split("VmHWM:")[1].split()[0]) / 1e3) for text in status]

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            os.kill(pid, number)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def ask(address: tuple[str, int], prompt: list[int], num_tokens: int) -> Times:
    sampling = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps(sampling | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(*address)
    begin_s = time.perf_counter()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    first_s = last_s = 0.0
    tail = b""
    while data := await reader.read(1 << 16):
        now = time.perf_counter()
        tail = (tail + data)[-4000:]
        if b'"text"' in data:
            first_s, last_s = first_s or now, now
    writer.close()
    usage = re.search(rb'"completion_tokens": ?(\d+)', tail)
    if usage is None or int(usage[1]) != num_tokens:
        raise SystemExit(f"an answer is not of {num_tokens} tokens: {tail[-300:]!r}")
    return begin_s, first_s, last_s


async def load(address: tuple[str, int], args: argparse.Namespace) -> dict[str, float]:
    draw = random.SystemRandom()
    prompts = [[draw.randrange(LEAST_TOKEN, MOST_TOKEN) for _ in range(args.prompt)] for _ in range(args.requests)]
    waiting = iter(prompts)
    times: list[Times] = []

    async def client() -> None:
        for prompt in waiting:
            times.append(await ask(address, prompt, args.tokens))

    begin_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(args.clients)))
    seconds = time.perf_counter() - begin_s
    firsts = sorted(first - begin for begin, first, _ in times)
    gaps = sorted((last - first) / (args.tokens - 1) for _, first, last in times)
    return {
        "output_tokens_per_s": args.requests * args.tokens / seconds,
        "ttft_p50_ms": 1e3 * statistics.median(firsts),
        "ttft_p99_ms": 1e3 * firsts[int(0.99 * len(firsts))],
        "tpot_p50_ms": 1e3 * statistics.median(gaps),
        "tpot_p99_ms": 1e3 * gaps[int(0.99 * len(gaps))],
    }


def measure(servers: list[Server], args: argparse.Namespace) -> dict[str, Any]:
    """Every server in its turn, the others stopped."""
    runs: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    for _ in range(args.rounds):
        for server in servers:
            server.resume()
            before_s = server.cpu_s()
            run = asyncio.run(load(server.address, args))
            run["cpu_us_per_token"] = 1e6 * (server.cpu_s() - before_s) / (args.requests * args.tokens)
            runs[server.name].append(run)
            server.pause()
            print(f"{server.name:12} " + "  ".join(f"{key} {value:,.1f}" for key, value in run.items()), flush=True)
    return {
        server.name: {
            "ready_s": round(server.ready_s, 2),
            "start_s": round(server.start_s, 2),
            "peak_mb_before": server.idle_mb,
            "peak_mb": server.peak_mb(),
            "medians": {key: round(statistics.median(run[key] for run in each), 2) for key in each[0]},
            "runs": each,
        }
        for server in servers
        for each in [runs[server.name]]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU workloads over HTTP, servers by turns")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    for name, default in {"clients": 8, "requests": 8, "prompt": 256, "tokens": 128, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    servers: list[Server] = []
    try:
        for each in args.server:
            name, _, command = each.partition("=")
            servers.append(Server(name, command))
            servers[-1].pause()
        found = measure(servers, args)
    finally:
        for server in servers:
            server.close()
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": {name: getattr(args, name) for name in ("clients", "requests", "prompt", "tokens", "rounds")},
        "servers": found,
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    for name, figures in found.items():
        print(f"median {name:12} " + "  ".join(f"{key} {value:,.1f}" for key, value in figures["medians"].items()))


if __name__ == "__main__":
    main()
