"""What only many calls show: a network full of faults, and readers that leave or dawdle, for as long as patience lasts."""

import asyncio
import json
import os
import time
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.machine import wait_until
from tests.server.hostile import hostile_proxy
from tests.server.ledger import Ledger
from tests.server.serving import Server, chat_text, serving, user
from tests.server.test_faults import resources

FIGURES = "PENSTOCK_FIGURES"
"""The folder that figures of a campaign are kept in, if anybody wants them."""


def keep(name: str, figures: dict[str, object]) -> None:
    folder = os.environ.get(FIGURES)
    if folder:
        Path(folder, f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


def is_at_rest(server: Server) -> bool:
    names = (
        "penstock_calls_open",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    )
    return not any(server.metric(name) for name in names)


PIECES = [pytest.param(4000, 32, seed, marks=pytest.mark.slow) for seed in range(2, 7)]
"""Twenty thousand calls, in pieces that can be run apart."""


@pytest.mark.parametrize(("count", "in_flight", "seed"), [(32, 16, 1), *PIECES])
def test_a_hostile_network_hurts_only_whom_it_touches(count: int, in_flight: int, seed: int) -> None:
    """A call whose connection suffers nothing is answered rightly; the others end too, and leave nothing behind."""

    async def one(url: str, gate: asyncio.Semaphore, ledger: Ledger, number: int) -> None:
        async with gate, httpx.AsyncClient(base_url=url, timeout=60.0, verify=False) as http:
            try:
                await ledger.ask(http, f"call {number}", stream=number % 2 == 0)
            except (ValueError, LookupError, AssertionError):
                ledger.lost.append(f"call {number}: what came is no answer")

    async def campaign(server: Server) -> tuple[Ledger, dict[str, int]]:
        ledger = Ledger()
        async with hostile_proxy(server.url, seed) as (url, proxy):
            gate = asyncio.Semaphore(in_flight)
            await asyncio.gather(*(one(url, gate, ledger, number) for number in range(count)))
            return ledger, dict(proxy.suffered)

    with serving(model="oracle:step_ms=1") as server:
        server.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})
        before = resources(server)
        ledger, suffered = asyncio.run(campaign(server))
        num_changed = suffered["corrupt request"]
        num_cut = suffered["reset request"] + suffered["reset answer"]
        assert ledger.count == count
        assert len(ledger.wrong) <= num_changed, "only a request that was changed is answered otherwise"
        assert len(ledger.lost) <= num_changed + num_cut, "only a connection that was cut ends without an outcome"
        assert ledger.complete >= suffered["none"] + suffered["stall"]
        wait_until(lambda: is_at_rest(server))
        grown = resources(server)[1] - before[1]
        assert grown < 64 << 20
        assert server.get("/readyz").status_code == 200
        figures = {"calls": count, **suffered, "complete": ledger.complete, "refused": len(ledger.refused)}
        keep(f"hostile-network-{seed}", figures | {"cut": len(ledger.lost), "mib_grown": round(grown / 2**20, 1)})


async def soak(server: Server, seconds: float, rate: float, seed: int) -> tuple[Ledger, list[float], int]:
    """Calls at a steady rate: of ten, one leaves in the middle of its answer and one reads it slowly."""
    random, ledger = Random(seed), Ledger()
    took_s: list[float] = []
    num_left = 0
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)

    async def one(http: httpx.AsyncClient, number: int, kind: int) -> None:
        nonlocal num_left
        start_s = time.monotonic()
        if kind == 0:
            body = {"messages": user(f"soak {number}"), "max_tokens": 40, "stream": True}
            async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                async for _ in response.aiter_bytes():
                    break
            num_left += 1
        elif kind == 1:
            await _read_slowly(http, ledger, f"soak {number}")
        else:
            await ledger.ask(http, f"soak {number}", stream=number % 2 == 0, tokens=12)
            took_s.append(time.monotonic() - start_s)

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=120.0, limits=limits, verify=False) as http,
        asyncio.TaskGroup() as calls,
    ):
        start_s = time.monotonic()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(start_s + number / rate - time.monotonic(), 0.0))
            calls.create_task(one(http, number, random.randrange(10)))
    return ledger, took_s, num_left


async def _read_slowly(http: httpx.AsyncClient, ledger: Ledger, content: str) -> None:
    body = {"messages": user(content), "max_tokens": 12, "seed": 1, "stream": True}
    text = ""
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            await asyncio.sleep(0.05)
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    ledger.complete += 1
    if text != chat_text(content, 12, seed=1):
        ledger.wrong.append(content)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3.0, 1800.0])
def test_a_soak_loses_nothing_and_grows_nothing(seconds: float) -> None:
    """At four fifths of what eight rows of 5 ms steps can do, or of what the machine can if that is less."""
    asked = os.environ.get("PENSTOCK_SOAK_S") if seconds > 60 else None
    seconds = float(asked) if asked else seconds
    rate = min(0.8 * 8 / (12 * 0.005 + 0.005), 40.0)
    with serving("--max-sequences", "8", model="oracle:step_ms=5") as server:
        warm, _, _ = asyncio.run(soak(server, min(seconds, 20.0) / 2, rate, seed=0))
        assert (warm.wrong, warm.lost) == ([], [])
        before = resources(server)
        ledger, took_s, num_left = asyncio.run(soak(server, seconds, rate, seed=1))
        wait_until(lambda: is_at_rest(server))
        grown = resources(server)[1] - before[1]
        assert (ledger.wrong, ledger.lost, ledger.failed, ledger.refused) == ([], [], 0, [])
        assert ledger.complete + num_left == round(rate * seconds)
        wait_until(lambda: resources(server)[0] <= before[0] + 4)
        assert grown < 32 << 20
        ordered = sorted(took_s)
        figures = {"seconds": seconds, "calls_per_s": round(rate, 1), "complete": ledger.complete, "left": num_left}
        p99_ms = round(1000 * ordered[int(0.99 * len(ordered))], 1)
        keep("soak", figures | {"wrong": 0, "lost": 0, "p99_ms": p99_ms, "mib_grown": round(grown / 2**20, 1)})
