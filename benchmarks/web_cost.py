"""What looking costs: tokens a second with two dashboards open over without, by turns, and with ten cockpit runs asked for.

    python -m benchmarks.web_cost http://127.0.0.1:8000 [TURNS [PID [OUT.json]]]

With the server's process id, processor time of server and engine is compared, too: others who use the machine change that
little. Prompts are token ids: the same work for every model with 30,000 tokens. Each turn sends the same load three ways, in
changing order; the medians of the turns' ratios are printed. The machine should do nothing else.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

REQUESTS, STREAMS, PROMPT, TOKENS = 64, 32, 256, 128
"""Workload W3: so many requests, so many of them at once, with fresh prompts of random tokens."""


async def load(client: httpx.AsyncClient) -> tuple[float, float]:
    """Tokens a second of all requests, and the p95 of the gaps between their tokens."""
    gaps: list[float] = []
    room = asyncio.Semaphore(STREAMS)

    async def one() -> int:
        body = {
            "prompt": [random.randrange(1000, 30_000) for _ in range(PROMPT)],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        count, last_s = 0, 0.0
        async with room, client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    if last_s:
                        gaps.append(now - last_s)
                    last_s = now
                    count += 1
        return count

    start_s = time.monotonic()
    counts = await asyncio.gather(*(one() for _ in range(REQUESTS)))
    gaps.sort()
    return sum(counts) / (time.monotonic() - start_s), gaps[int(0.95 * len(gaps))]


def spent_s(pid: int) -> float:
    """Processor time of the server and of its engine, tools left out."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = 0.0
    for one in (str(pid), *children):
        try:
            if b"cli.app.worker" not in Path(f"/proc/{one}/cmdline").read_bytes():
                fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
                found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue  # a tool that has ended
    return found


@asynccontextmanager
async def nobody(client: httpx.AsyncClient) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def dashboards(client: httpx.AsyncClient) -> AsyncIterator[None]:
    async def read() -> None:
        async with client.stream("GET", "/app/v1/events") as response:
            async for _ in response.aiter_bytes():
                pass

    tasks = [asyncio.create_task(read()) for _ in range(2)]
    await asyncio.sleep(1.0)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def cockpits(client: httpx.AsyncClient) -> AsyncIterator[None]:
    async def run(number: int) -> None:
        body = {"flags": {"num-requests": 5000, "speculate": 4}, "lane": f"{number % 4}"}
        headers = {"x-penstock-tab": str(number // 4)}
        async with client.stream("POST", "/app/v1/simulate", json=body, headers=headers) as response:
            async for _ in response.aiter_bytes():
                pass

    tasks = [asyncio.create_task(run(number)) for number in range(10)]
    await asyncio.sleep(1.0)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


WAYS: dict[str, Callable[[httpx.AsyncClient], AbstractAsyncContextManager[None]]] = {
    "nobody looks": nobody,
    "two dashboards": dashboards,
    "ten cockpit runs": cockpits,
}


class Run(NamedTuple):
    tokens_per_s: float
    gap_p95_s: float
    cpu_s: float


async def measured(client: httpx.AsyncClient, pid: int | None) -> Run:
    before_s = spent_s(pid) if pid else 0.0
    rate, gap_s = await load(client)
    return Run(rate, gap_s, spent_s(pid) - before_s if pid else 0.0)


async def main() -> None:
    url, turns = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    pid = int(sys.argv[3]) if len(sys.argv) > 3 else None
    found: dict[str, list[Run]] = {name: [] for name in WAYS}
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=100)) as client:
        await load(client)
        for turn in range(turns):
            for name in sorted(WAYS, key=lambda name: (list(WAYS).index(name) + turn) % len(WAYS)):
                async with WAYS[name](client):
                    found[name].append(await measured(client, pid))
                await asyncio.sleep(1.0)
    base = found["nobody looks"]
    report = {
        name: {
            "tokens_per_s": round(statistics.median(one.tokens_per_s for one in rows), 2),
            "rate_ratio": round(statistics.median(a.tokens_per_s / b.tokens_per_s for a, b in zip(rows, base)), 4),
            "gap_p95_ratio": round(statistics.median(a.gap_p95_s / b.gap_p95_s for a, b in zip(rows, base)), 4),
            "cpu_ratio": round(statistics.median(a.cpu_s / b.cpu_s for a, b in zip(rows, base)), 4) if pid else None,
        }
        for name, rows in found.items()
    }
    text = json.dumps(report, indent=1)
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
