"""More than there is room for, with a server's default settings: overload, a burst, a key that floods beside a polite one.

    python -m benchmarks.edge.overload [--tree CHECKOUT] [--only capacity,overload,burst,fairness] [--seconds 40] [--json FILE]

The model is a script whose steps take 100 ms, so that 256 rows are full at 2,560 tokens a second whatever the machine. Told are
goodput under ten times as many calls as there is capacity for, how refusals are told (status, Retry-After, the server's own
milliseconds), how many of 200 streams at once are taken, and how long a polite key waits for its first token beside a flood.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import resource
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.edge.attacks import commit_of
from benchmarks.edge.served import KEYS, Served, percentile_ms, post, serving

ROOT = Path(__file__).parents[2]
MODEL = "scripted:step_ms=100"
NUM_ROWS = 256
TOKENS = 64
WARM_UP = 0.25
"""Share of an overload in which the queue fills."""


@dataclass
class Ended:
    """How one stream went."""

    status: int = 0
    """0 if the connection ended without one."""
    start_s: float = 0.0
    first_s: float | None = None
    end_s: float = 0.0
    num_tokens: int = 0
    is_whole: bool = False
    has_error: bool = False
    """An error came after the headers of a good answer."""
    retry_after: str = ""
    processing_ms: float | None = None


async def stream(served: Served, key: str, tokens: int = TOKENS) -> Ended:
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": tokens, "stream": True}
    ended = Ended(start_s=time.monotonic())
    writer = None
    try:
        reader, writer = await asyncio.open_connection(served.host, served.port, limit=1 << 20)
        writer.write(post("/v1/chat/completions", json.dumps(body).encode(), key))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        ended.status = int(head.split(" ", 2)[1])
        ended.retry_after = _header(head, "retry-after")
        ended.processing_ms = float(_header(head, "openai-processing-ms") or "nan")
        if ended.status == 200:
            while not ended.is_whole:
                line = await reader.readline()
                if not line:
                    break
                if b'"content":"' in line and b'"content":""' not in line:
                    ended.first_s = ended.first_s or time.monotonic() - ended.start_s
                    ended.num_tokens += 1
                ended.has_error |= b'"error":' in line
                ended.is_whole = b"[DONE]" in line
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        if writer is not None:
            writer.close()
    ended.end_s = time.monotonic()
    return ended


def _header(head: str, name: str) -> str:
    found = re.search(rf"\r\n{name}: ([^\r]*)\r\n", head)
    return found[1] if found else ""


async def arrivals(served: Served, key: str, rate: float, seconds: float, tokens: int = TOKENS) -> list[Ended]:
    """Calls at even distances, whether the earlier ones have ended or not."""
    start_s = time.monotonic()
    calls = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(start_s + number / rate - time.monotonic(), 0.0))
        calls.append(asyncio.create_task(stream(served, key, tokens)))
    return list(await asyncio.gather(*calls))


async def capacity(served: Served, seconds: float) -> dict:
    """As many streams at once as there are rows, one after another."""
    end_s = time.monotonic() + seconds

    async def one() -> int:
        num_tokens = 0
        while time.monotonic() < end_s:
            num_tokens += (await stream(served, KEYS[0])).num_tokens
        return num_tokens

    start_s = time.monotonic()
    num_tokens = sum(await asyncio.gather(*(one() for _ in range(NUM_ROWS))))
    return {"tokens_per_s": round(num_tokens / (time.monotonic() - start_s), 1)}


async def overload(served: Served, seconds: float, capacity_per_s: float) -> dict:
    rate = 10 * capacity_per_s / TOKENS
    start_s = time.monotonic()
    ended = await arrivals(served, KEYS[0], rate, seconds)
    taken = [one for one in ended if one.status == 200 and one.is_whole and not one.has_error]
    refused = [one for one in ended if one.status in (429, 503)]
    late = [one for one in ended if one.status == 200 and one.has_error]
    from_s = start_s + WARM_UP * seconds
    until_s = max((one.end_s for one in taken), default=from_s)
    full_s = start_s + seconds
    shares = [_share(one, from_s, full_s) for one in taken]
    return {
        "calls": len(ended),
        "taken": len(taken),
        "refused": len(refused),
        "refused_after_the_first_byte": len(late),
        "lost": len(ended) - len(taken) - len(refused) - len(late),
        "goodput": round(sum(shares) / (full_s - from_s) / capacity_per_s, 3),
        "with_retry_after": sum(bool(one.retry_after) for one in refused + late),
        "refusal_server_p99_ms": _p99([one.processing_ms for one in refused if one.processing_ms is not None]),
        "refusal_client_p99_ms": percentile_ms([one.end_s - one.start_s for one in refused], 0.99),
        "drained_after_s": round(until_s - full_s, 1),
    }


def _share(one: Ended, from_s: float, until_s: float) -> float:
    """Tokens of an answer that came between two moments, if they came evenly."""
    begin_s, end_s = one.start_s + (one.first_s or 0.0), one.end_s
    overlap_s = min(end_s, until_s) - max(begin_s, from_s)
    return one.num_tokens * max(overlap_s, 0.0) / max(end_s - begin_s, 1e-9)


def _p99(numbers: list[float]) -> float | None:
    ordered = sorted(numbers)
    return ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)] if ordered else None


async def burst(served: Served, num_streams: int = 200) -> dict:
    ended = await asyncio.gather(*(stream(served, KEYS[0]) for _ in range(num_streams)))
    first = [one.first_s for one in ended if one.first_s is not None]
    return {
        "streams": num_streams,
        "whole": sum(one.is_whole and not one.has_error and one.status == 200 for one in ended),
        "statuses": dict(Counter(str(one.status) for one in ended)),
        "ttft_p99_ms": percentile_ms(first, 0.99),
    }


async def fairness(served: Served, seconds: float, capacity_per_s: float) -> dict:
    """A key at five times the capacity, and one that asks for a short answer twice a second."""
    alone = await arrivals(served, KEYS[1], 2.0, 5.0, 8)
    flood = asyncio.create_task(arrivals(served, KEYS[0], 5 * capacity_per_s / TOKENS, seconds))
    await asyncio.sleep(WARM_UP * seconds)
    polite = await arrivals(served, KEYS[1], 2.0, (1 - WARM_UP) * seconds, 8)
    flooding = await flood
    return {
        "polite_calls": len(polite),
        "polite_refused": sum(one.status != 200 or one.has_error for one in polite),
        "ttft_alone_p50_ms": percentile_ms([one.first_s for one in alone if one.first_s], 0.5),
        "ttft_alone_p95_ms": percentile_ms([one.first_s for one in alone if one.first_s], 0.95),
        "ttft_beside_p50_ms": percentile_ms([one.first_s for one in polite if one.first_s], 0.5),
        "ttft_beside_p95_ms": percentile_ms([one.first_s for one in polite if one.first_s], 0.95),
        "flood_calls": len(flooding),
        "flood_taken": sum(one.is_whole for one in flooding),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is loaded")
    parser.add_argument("--only", default="burst,overload,fairness")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--label", default="")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    names = arguments.only.split(",")
    found: dict[str, dict] = {}
    with serving(arguments.tree, MODEL, "--num-blocks", "16384", keys=KEYS[:1]) as served:
        if "burst" in names:
            found["burst"] = uvloop.run(burst(served))
        found["capacity"] = uvloop.run(capacity(served, min(arguments.seconds / 3, 15.0)))
        capacity_per_s = found["capacity"]["tokens_per_s"]
        if "overload" in names:
            found["overload"] = uvloop.run(overload(served, arguments.seconds, capacity_per_s))
    if "fairness" in names:
        with serving(arguments.tree, MODEL, "--num-blocks", "16384") as served:
            found["fairness"] = uvloop.run(fairness(served, arguments.seconds / 2, capacity_per_s))
    print(json.dumps(found), flush=True)
    if arguments.json:
        path, label = arguments.json, arguments.label or commit_of(arguments.tree)
        record = json.loads(path.read_text()) if path.exists() else {"benchmark": "edge overload", "trees": {}}
        record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        record["trees"].setdefault(label, {}).update(found)
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
