"""W5 and W3 through a real server: streaming clients over the loopback, first and later tokens, memory, processor time.

    python benchmarks/cpu/streams.py MODEL [--clients 8] [--requests 8] [--prompt 256] [--tokens 128] [--repeats 3]
                                     [--serve=--kv=int8 ...] [--json record.json]

Starts `penstock serve` and reads streams from one client process: random token ids, greedy, end of text ignored. `--requests`
above `--clients` keeps so many under way (64 and 32 are W3). `start_s` is from starting the command to the first token of an
answer. Latencies count from when a request is sent; TPOT is a stream's time after its first token, a token.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LEAST_TOKEN, MOST_TOKEN = 1000, 40_000
"""Ordinary words of every vocabulary here."""


class Server:
    def __init__(self, model: str, flags: list[str]) -> None:
        command = [sys.executable, "-m", "penstock", "serve", model, "--port", "0", *flags]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        banner = ""
        for line in self._process.stdout or ():
            banner += line
            if "docs:" in line:
                break
        found = re.search(r"http://([^:]+):(\d+)", banner)
        if found is None:
            raise SystemExit(f"the server did not start: {banner}")
        self.address = found[1], int(found[2])
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self.pids = {"front": self._process.pid, "engine": int(children[0])}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def cpu_s(self) -> dict[str, float]:
        tick = os.sysconf("SC_CLK_TCK")
        fields = {
            name: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for name, pid in self.pids.items()
        }
        return {name: (int(each[11]) + int(each[12])) / tick for name, each in fields.items()}

    def peak_mb(self) -> dict[str, int]:
        status = {name: Path(f"/proc/{pid}/status").read_text() for name, pid in self.pids.items()}
        return {name: round(int(text.split("VmHWM:")[1].split()[0]) / 1e3) for name, text in status.items()}


async def ask(address: tuple[str, int], prompt: list[int], num_tokens: int) -> tuple[float, float, float]:
    """When the request was sent, when its first token came and when its last."""
    wish = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps(wish | {"stream": True, "stream_options": {"include_usage": True}}).encode()
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
    times: list[tuple[float, float, float]] = []

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
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU workloads over HTTP")
    parser.add_argument("model")
    for name, default in {"clients": 8, "requests": 8, "prompt": 256, "tokens": 128, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", action="append", default=[], help="a flag for the server")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begin_s = time.perf_counter()
    server = Server(args.model, args.serve)
    try:
        ready_s = time.perf_counter() - begin_s
        asyncio.run(ask(server.address, list(range(1000, 1008)), 2))
        start_s = time.perf_counter() - begin_s
        idle = server.peak_mb()
        before, own_s = server.cpu_s(), time.process_time()
        runs = [asyncio.run(load(server.address, args)) for _ in range(args.repeats)]
        spent = {name: after - before[name] for name, after in server.cpu_s().items()}
        spent["client"] = time.process_time() - own_s
        num_tokens = args.repeats * args.requests * args.tokens
        record = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load": {name: getattr(args, name) for name in ("clients", "requests", "prompt", "tokens", "serve")},
            "ready_s": round(ready_s, 2),
            "start_s": round(start_s, 2),
            "medians": {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]},
            "cpu_us_per_token": {name: round(1e6 * seconds / num_tokens, 1) for name, seconds in spent.items()},
            "peak_mb_before": idle,
            "peak_mb": server.peak_mb(),
            "runs": runs,
        }
    finally:
        server.close()
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    for name, value in record.items():
        if name != "runs":
            print(f"{name:18} {value}")


if __name__ == "__main__":
    main()
