"""What one key's flood costs another: time to the first token of short answers, alone and beside each flood of a table.

    python -m benchmarks.edge.fairness [--tree CHECKOUT] [--only NAME,...] [--seconds 20] [--json FILE]

Two keys at one server with default settings. A polite client asks for short streamed answers, each of its own words, three in
two seconds; the flood runs in a process of its own at the lowest priority, as if it were on another machine. With
`--model scripted:step_ms=10,token_ms=1.5` steps take the time of a small model on two cores and none of this machine's.

`switching` needs two models of which only one fits in 1200 MiB with a cache of 512; how often each was loaded is told. Parts of
a time are as the server's headers tell them: waits of the engine beyond half a second are counted at the edge.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.edge.attacks import commit_of
from benchmarks.edge.served import KEYS, Served, ask, percentile_ms, post, serving

ROOT = Path(__file__).parents[2]
NUM_STREAMS = 300
RATE = 1.5
WARM_UP_S = 4.0
"""How long a flood goes on before the other key is measured."""
ANSWER_S = 120.0
REFUSED = (b"HTTP/1.1 4", b"HTTP/1.1 5")
NUMBERS = count()
PROCESSED = re.compile(rb"(openai-processing-ms|server-timing: wait)(?:: |;dur=)([0-9.]+)")


def _request(path: str, body: dict[str, Any], key: str) -> bytes:
    return post(path, json.dumps(body).encode(), key)


class First(NamedTuple):
    """Seconds until the first words of an answer, and where they went."""

    total_s: float
    prepared_s: float
    """From the request's headers to the engine: its turn, its body, its template, its tokens."""
    engine_s: float
    """From there to the first words: the engine's queue and steps."""

    @property
    def edge_s(self) -> float:
        """Before its headers were read and after its words were written: connection, sockets, the event loop's queue."""
        return self.total_s - self.prepared_s - self.engine_s


async def _stream(served: Served, request: bytes) -> First | None:
    """None if there were no words. The answer is read to its end."""
    start_s, found, writer, told_ms = time.monotonic(), None, None, {}
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(served.host, served.port, limit=1 << 20)
            writer.write(request)
            while (line := await reader.readline()) and not line.startswith(REFUSED):
                if header := PROCESSED.match(line):
                    told_ms[header[1]] = float(header[2])
                elif found is None and (b'"content":"' in line or b'"text":"' in line) and b'""' not in line:
                    spent_ms, engine_ms = (
                        told_ms.get(b"openai-processing-ms", 0.0),
                        told_ms.get(b"server-timing: wait", 0.0),
                    )
                    found = First(time.monotonic() - start_s, (spent_ms - engine_ms) / 1000, engine_ms / 1000)
                if b"[DONE]" in line:
                    break
    if writer is not None:
        writer.close()
    return found


# Floods: what the other key does on one of its connections, again and again


async def streams(served: Served) -> None:
    """Short questions, long answers."""
    asked = f"{next(NUMBERS)} tell me a long story"
    body = {"messages": [{"role": "user", "content": asked}], "max_tokens": 200, "stream": True}
    await _stream(served, _request("/v1/chat/completions", body, KEYS[0]))


async def long_prompts(served: Served) -> None:
    """Prompts of about a thousand tokens, each of its own, and short answers."""
    body = {"prompt": f"{next(NUMBERS)} " + "word and more " * 330, "max_tokens": 8, "stream": True}
    await _stream(served, _request("/v1/completions", body, KEYS[0]))


async def hang_ups(served: Served) -> None:
    """Long answers to long prompts, left at once."""
    body = {"prompt": f"{next(NUMBERS)} " + "word " * 1000, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(served.host, served.port)
        writer.write(_request("/v1/completions", body, KEYS[0]))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()


async def switching(served: Served) -> None:
    """Another model, of which only one fits, and an end to the one the other key uses."""
    chat = {"model": "theirs", "messages": [{"role": "user", "content": "go"}], "options": {"num_predict": 4}}
    for body in (chat, {"model": "ours", "messages": [], "keep_alive": 0}):
        request = _request("/api/chat", {**body, "stream": False}, KEYS[0])
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await asyncio.wait_for(ask(served.host, served.port, request), 60.0)


FLOODS: dict[str, tuple[Callable[[Served], Awaitable[None]], int]] = {
    "streams": (streams, NUM_STREAMS),
    "long-prompts": (long_prompts, NUM_STREAMS),
    "hang-ups": (hang_ups, 16),
    "switching": (switching, 4),
}
"""What is done, on how many connections at once."""
LOADS = re.compile(r'penstock_model_loads_total\{[^}]*model_name="(\w+)"[^}]*\} (\d+)')


async def run_flood(served: Served, name: str) -> None:
    """Until it is killed."""
    act, num = FLOODS[name]

    async def one() -> None:
        while True:
            await act(served)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(num)))


async def polite(served: Served, seconds: float, model: str = "default") -> list[First | None]:
    """Times to the first words of calls at even distances."""
    start_s = time.monotonic()
    calls = []
    for number in range(round(RATE * seconds)):
        await asyncio.sleep(max(start_s + number / RATE - time.monotonic(), 0.0))
        asked = f"What is {next(NUMBERS)} and {number}?"
        body = {"model": model, "messages": [{"role": "user", "content": asked}], "max_tokens": 4, "stream": True}
        calls.append(asyncio.create_task(_stream(served, _request("/v1/chat/completions", body, KEYS[1]))))
    return list(await asyncio.gather(*calls))


def figures(firsts: list[First | None]) -> dict[str, Any]:
    told = [one for one in firsts if one is not None]
    parts = {
        "ttft": [one.total_s for one in told],
        "edge": [one.edge_s for one in told],
        "prepared": [one.prepared_s for one in told],
        "engine": [one.engine_s for one in told],
    }
    shares = {f"{part}_p{p}_ms": percentile_ms(times_s, p / 100) for part, times_s in parts.items() for p in (50, 95)}
    worst = percentile_ms(parts["ttft"], 1.0)
    return {"calls": len(firsts), "failed": len(firsts) - len(told), **shares, "ttft_max_ms": worst}


def beside(served: Served, name: str, seconds: float, model: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.edge.fairness", "--flood", name]
    with subprocess.Popen([*words, f"--address={served.host}:{served.port}"], cwd=ROOT) as flood:
        try:
            time.sleep(WARM_UP_S)
            before_s = served.cpu_by_process
            found = figures(uvloop.run(polite(served, seconds, model)))
            spent = [round(now - before, 1) for now, before in zip(served.cpu_by_process, before_s)]
        finally:
            flood.kill()
    return {**found, "cpu_s": spent}


def loads(served: Served) -> dict[str, int]:
    """How often each model was loaded so far."""
    request = f"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEYS[1]}\r\n\r\n".encode()
    _, body = asyncio.run(ask(served.host, served.port, request))
    return {name: int(count) for name, count in LOADS.findall(body.decode())}


def measure(tree: Path, name: str, models: tuple[str, str], seconds: float, flags: list[str]) -> dict[str, Any]:
    model, asked = models[0], "default"
    if name == "switching":
        model, asked = f"--model=ours={models[0]}", "ours"
        flags = [f"--model=theirs={models[1]}", "--models-memory=1200MiB", "--kv-memory=512MiB", *flags]
    with serving(tree, model, *flags) as served:
        uvloop.run(polite(served, 2.0, asked))
        alone = figures(uvloop.run(polite(served, seconds, asked)))
        flooded = beside(served, name, seconds, asked)
        if name == "switching":
            flooded["loads"] = loads(served)
    ratio = round(flooded["ttft_p95_ms"] / alone["ttft_p95_ms"], 2) if flooded["ttft_p95_ms"] else None
    return {"flood": name, "alone": alone, "beside": flooded, "p95_ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is loaded")
    parser.add_argument("--model", default="default")
    parser.add_argument("--other", default="default", help="model that the flooding key switches to")
    parser.add_argument("--only", default=",".join(FLOODS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flags", default="", help="more flags of the server, with spaces")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if arguments.flood:
        os.nice(39)
        host, port = arguments.address.rsplit(":", 1)
        uvloop.run(run_flood(Served(None, host, int(port)), arguments.flood))  # type: ignore[arg-type]
        return
    found = {}
    for name in arguments.only.split(","):
        models = (arguments.model, arguments.other)
        found[name] = measure(arguments.tree, name, models, arguments.seconds, arguments.flags.split())
        print(json.dumps(found[name]), flush=True)
    if arguments.json:
        path, label = arguments.json, commit_of(arguments.tree)
        record = json.loads(path.read_text()) if path.exists() else {"benchmark": "edge fairness", "trees": {}}
        record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        record["trees"].setdefault(label, {}).update(found)
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
