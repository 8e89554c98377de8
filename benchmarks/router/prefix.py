"""Prefix-aware routing over a recorded trace: what several caches give of what one endless cache would; how even the load is.

    python benchmarks/router/prefix.py TRACE [--requests N] [--speed S] [--policies a,b] [--live] [--json FILE]

TRACE is Mooncake's conversation trace (github.com/kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0): jsonl with
timestamp, input_length, output_length and hash_ids, each id a run of 512 tokens. One token here stands for 32 of the trace, so
that an id is one block of an engine and lengths are a thirty-second. Simulated: the engines' own scheduler and the router's own
policies in virtual time. `--live`: real servers (`scripted:`) behind a real router, the same requests at the same times.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.sizing import Sizing
from penstock.service.router.policy import POLICIES
from penstock.tools.sim.simulation import Fleet, simulate

BLOCK = 16
SCALE = 512 // BLOCK
STEP_S = 0.005
NUM_REPLICAS = 4
MAX_CONTEXT = 8192
ROOT = Path(__file__).parents[2]


class StepCost:
    """Every step takes the same time, as a paced engine's does."""

    def step_s(self, batch: Batch) -> float:
        return STEP_S

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        return [STEP_S] * num_steps


def tokens_of(hash_id: int) -> list[int]:
    """A block that no other id has, of tokens below 256."""
    digits = [1 + (hash_id // 200**place) % 200 for place in range(4)]
    return (digits * BLOCK)[:BLOCK]


def read(path: Path, num_requests: int, speed: float) -> list[Request]:
    made = []
    for number, line in enumerate(path.read_text().splitlines()[:num_requests]):
        row = json.loads(line)
        tokens = [token for hash_id in row["hash_ids"] for token in tokens_of(hash_id)]
        length = max(1, min(len(tokens), row["input_length"] // SCALE, MAX_CONTEXT // 2))
        answer = max(1, row["output_length"] // SCALE)
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        arrival_s = row["timestamp"] / 1000 / speed
        made.append(Request(request_id=number, prompt=tuple(tokens[:length]), params=params, arrival_s=arrival_s))
    return made


def endless(requests: list[Request]) -> int:
    """Prompt tokens that one cache which forgets nothing would give, were each prompt there before the next comes."""
    seen: set[bytes] = set()
    found = 0
    for request in requests:
        prompt = bytes(request.prompt)
        ends = range(BLOCK, len(prompt), BLOCK)
        held = 0
        for end in ends:
            if prompt[:end] not in seen:
                break
            held = end
        found += held
        seen.update(prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK))
    return found


def simulated(requests: list[Request], policy: str, num_blocks: int) -> dict:
    config = EngineConfig(
        model=ModelConfig(model="scripted:", max_context=MAX_CONTEXT),
        cache=CacheConfig(num_blocks=num_blocks),
        scheduler=SchedulerConfig(max_waiting=100_000, max_waiting_tokens=10**9),
    )
    sizing = Sizing(
        num_blocks=num_blocks,
        block_size=BLOCK,
        block_bytes=1,
        max_context=MAX_CONTEXT,
        weight_bytes=0,
        workspace_bytes=0,
        free_bytes=0,
    )
    fleet = Fleet(config, sizing, StepCost(), NUM_REPLICAS, policy=lambda: POLICIES[policy](0))
    begin_s = time.perf_counter()
    result = simulate(fleet, requests)
    prompts = [replica.num_prompt_tokens for replica in result.replicas]
    return {
        "cached": sum(replica.num_cached_tokens for replica in result.replicas),
        "requests": [replica.num_requests for replica in result.replicas],
        "spread_requests": spread([replica.num_requests for replica in result.replicas]),
        "spread_tokens": spread(prompts),
        "seconds": round(time.perf_counter() - begin_s, 2),
    }


def spread(counts: list[int]) -> float:
    return round(max(counts) * len(counts) / max(sum(counts), 1), 3)


# Live


def started(stack: ExitStack, *words: str) -> str:
    """A server of ours in a process; its address."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found.group()
    raise RuntimeError(f"{words} did not start")


async def ask(port: int, request: Request, begin_s: float) -> tuple[str, int]:
    """Who answered, and how many prompt tokens its cache gave."""
    await asyncio.sleep(max(0.0, begin_s + request.arrival_s - time.monotonic()))
    body = {
        "prompt": list(request.prompt),
        "max_tokens": request.params.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    route = re.search(rb"x-penstock-route: (\w+)", head)
    value = json.loads(body)
    if route is None or "usage" not in value:
        raise RuntimeError(answer[:500])
    return route.group(1).decode(), value["usage"]["prompt_tokens_details"]["cached_tokens"]


def live(requests: list[Request], policy: str, num_blocks: int) -> dict:
    with ExitStack() as stack:
        engine = (
            "scripted:step_ms=5",
            "--port",
            "0",
            "--num-blocks",
            str(num_blocks),
            "--max-context",
            str(MAX_CONTEXT),
        )
        wide = ("--max-waiting", "100000", "max-waiting-tokens=1000000000")
        urls = [started(stack, "serve", *engine, *wide) for _ in range(NUM_REPLICAS)]
        flags = [word for url in urls for word in ("--replica", url)]
        url = started(stack, "route", "--port", "0", "--policy", policy, "slow-start-s=0", *flags)
        port = int(url.rpartition(":")[2])
        while urlopen(f"{url}/router/replicas").read().count(b'"state":"ready"') < NUM_REPLICAS:
            time.sleep(0.2)

        async def all_of_them() -> list[tuple[str, int]]:
            begin_s = time.monotonic() + 0.2
            return await asyncio.gather(*(ask(port, request, begin_s) for request in requests))

        begin_s = time.perf_counter()
        answers = asyncio.run(all_of_them())
        seconds = time.perf_counter() - begin_s
    names = sorted({name for name, _ in answers})
    lengths = dict.fromkeys(names, 0)
    for request, (name, _) in zip(requests, answers):
        lengths[name] += len(request.prompt)
    counts = [sum(1 for one, _ in answers if one == name) for name in names]
    return {
        "cached": sum(cached for _, cached in answers),
        "requests": counts,
        "spread_requests": spread(counts),
        "spread_tokens": spread(list(lengths.values())),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=10**9)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--num-blocks", type=int, default=60_000, help="of each replica")
    parser.add_argument(
        "--policies", default="round-robin,least-pending,consistent-hash,prefix-predicted,prefix-reported"
    )
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    requests = read(asked.trace, asked.requests, asked.speed)
    best, total = endless(requests), sum(len(request.prompt) for request in requests)
    print(f"{len(requests)} requests, {total:,} prompt tokens; one endless cache gives {best / total:.1%} of them")
    found = {"trace": asked.trace.name, "requests": len(requests), "speed": asked.speed, "num_blocks": asked.num_blocks}
    found |= {"prompt_tokens": total, "endless_cached": best, "policies": {}}
    for policy in asked.policies.split(","):
        rows = {"simulated": simulated(requests, policy, asked.num_blocks)}
        if asked.live:
            rows["live"] = live(requests, policy, asked.num_blocks)
        for kind, row in rows.items():
            row["of_endless"] = round(row["cached"] / best, 4)
            print(
                f"{policy:18} {kind:10} cached {row['of_endless']:.1%} of endless, max/mean requests "
                f"{row['spread_requests']:.2f}, tokens {row['spread_tokens']:.2f}  ({row['seconds']} s)",
                flush=True,
            )
        found["policies"][policy] = rows
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
