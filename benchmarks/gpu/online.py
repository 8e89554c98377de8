"""A server under HTTP loads, as its users meet it: from the start of its process to steady streams.

    python -m benchmarks.gpu.online [--model dummy:llama-3.1-8b] [--loads first,warm,c64,r30] [--cold] [--json FILE] -- FLAGS

The client is a process of its own over raw sockets. The same seed gives the same prompts and arrivals. `--cold` begins with an
empty folder of compiled kernels, as a machine does that never served before. Flags behind `--` go to `penstock serve`.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_LIMIT_S = 300.0
VOCABULARY = range(1000, 48000)
Length = Callable[[random.Random], int]


@dataclass(frozen=True)
class Load:
    """Closed: so many users, each asking again once answered. Open: so many requests a second, answered or not."""

    count: int
    prompt: Length
    answer: Length
    users: int = 0
    rate: float = 0.0
    shared: int = 0
    num_schemas: int = 0
    temperature: float = 0.0


def fixed(count: int) -> Length:
    return lambda numbers: count


def between(least: int, most: int) -> Length:
    return lambda numbers: numbers.randint(least, most)


LOADS: dict[str, Load] = {
    "first": Load(32, fixed(256), fixed(32), users=16),
    "warm": Load(384, between(100, 1024), between(20, 60), users=64),
    "c1": Load(4, fixed(512), fixed(128), users=1),
    "c16": Load(96, fixed(512), fixed(128), users=16),
    "c64": Load(320, fixed(512), fixed(128), users=64),
    "c64d": Load(128, fixed(128), fixed(512), users=64),
    "c192": Load(384, fixed(128), fixed(384), users=192),
    "c256": Load(768, fixed(512), fixed(128), users=256),
    "r30": Load(600, between(100, 1024), between(50, 250), rate=30),
    "r40": Load(800, between(100, 1024), between(50, 250), rate=40),
    "r8": Load(120, between(3000, 3900), between(80, 120), rate=8),
    "l32": Load(12, fixed(32000), fixed(128), users=4),
    "shared": Load(320, fixed(100), fixed(128), users=64, shared=1500),
    "free": Load(256, fixed(128), fixed(256), users=128, temperature=1.0),
    "schemas": Load(256, fixed(128), fixed(256), users=128, num_schemas=64, temperature=1.0),
}


@dataclass(frozen=True)
class Timing:
    ttft_s: float
    tpot_s: float
    num_tokens: int
    end_s: float


def schema(number: int) -> dict[str, Any]:
    kinds = ("integer", "string", "boolean", "number")
    names = {f"field_{number}_{place}": {"type": kinds[place % 4]} for place in range(6)}
    item = {"type": "object", "properties": names, "required": list(names), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 400}


async def ask(port: int, body: dict[str, Any], due_s: float) -> Timing | str:
    """One streamed completion; a text says what went wrong."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(content)}\r\n"
    head += "content-type: application/json\r\nconnection: close\r\n\r\n"
    first = last = 0.0
    num_tokens = 0
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.write(head.encode() + content)
        await writer.drain()
        async for line in reader:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
                if b'"usage":{' in line:
                    num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        writer.close()
    except OSError as error:
        return str(error)
    if not num_tokens:
        return "the stream ended without usage"
    return Timing(first - due_s, (last - first) / max(num_tokens - 1, 1), num_tokens, last)


async def run(load: Load, port: int, seed: str) -> tuple[float, list[Timing | str]]:
    numbers = random.Random(seed)
    beginning = [numbers.choice(VOCABULARY) for _ in range(load.shared)]
    bodies = []
    for number in range(load.count):
        tokens = beginning + [numbers.choice(VOCABULARY) for _ in range(load.prompt(numbers))]
        body = {
            "model": "default",
            "prompt": tokens,
            "max_tokens": load.answer(numbers),
            "temperature": load.temperature,
        }
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        extra = (
            {"structured_outputs": {"json": schema(number % load.num_schemas)}}
            if load.num_schemas
            else {"ignore_eos": True}
        )
        bodies.append(body | extra)
    done: list[Timing | str] = []
    begun = time.perf_counter()
    if load.rate:
        tasks, due = [], begun
        for body in bodies:
            due += numbers.expovariate(load.rate)
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(ask(port, body, due)))
        done = list(await asyncio.gather(*tasks))
    else:
        waiting = iter(bodies)

        async def user() -> None:
            for body in waiting:
                done.append(await ask(port, body, time.perf_counter()))

        await asyncio.gather(*(user() for _ in range(load.users)))
    return begun, done


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def figures(begun: float, done: list[Timing | str]) -> dict[str, Any]:
    good = [each for each in done if isinstance(each, Timing)]
    failed = [each for each in done if isinstance(each, str)]
    if not good:
        return {"failed": len(failed), "error": failed[0]}
    wall = max(each.end_s for each in good) - begun
    found: dict[str, Any] = {"requests": len(good), "failed": len(failed), "wall_s": round(wall, 2)}
    found["tokens_per_s"] = round(sum(each.num_tokens for each in good) / wall)
    for name in ("ttft", "tpot"):
        values = [getattr(each, f"{name}_s") for each in good]
        found |= {f"{name}_p{int(share * 100)}_ms": round(1000 * quantile(values, share), 2) for share in (0.5, 0.95)}
    return found


def serve(model: str, port: int, cache: str, flags: list[str]) -> tuple["subprocess.Popen[bytes]", float]:
    """The server's process, and the seconds until it had answered."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "penstock", "serve", model, "--port", str(port), *flags]
    process = subprocess.Popen(command, env={**os.environ, "TRITON_CACHE_DIR": cache}, start_new_session=True)
    body = json.dumps({"model": "default", "prompt": [1000] * 16, "max_tokens": 2, "ignore_eos": True}).encode()
    while time.perf_counter() - begun < START_LIMIT_S and process.poll() is None:
        try:
            url = f"http://127.0.0.1:{port}/v1/completions"
            request = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60):
                return process, time.perf_counter() - begun
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server did not start (status {process.poll()})")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    default = os.environ.get("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
    with tempfile.TemporaryDirectory() as empty:
        port = free_port()
        process, start_s = serve(arguments.model, port, empty if arguments.cold else default, arguments.flags)
        record: dict[str, Any] = {"model": arguments.model, "flags": arguments.flags, "cold": arguments.cold}
        record |= {"start_to_first_answer_s": round(start_s, 2), "loads": {}}
        print(f"start to first answer {start_s:.1f} s", flush=True)
        try:
            for name in arguments.loads.split(","):
                record["loads"][name] = found = figures(
                    *asyncio.run(run(LOADS[name], port, f"{name} {arguments.seed}"))
                )
                print(name, *(f"{key} {value}" for key, value in found.items()), sep="  ", flush=True)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
