"""Prompts apart from answers: one engine, and a prefill and a decode process on the same device, under the same loads.

    python -m benchmarks.roles [--model dummy:llama-3.1-8b] [--seconds 12] [--rounds 1] [--modes always,auto,never] -- FLAGS

Some users stream answers to short prompts all the time; long prompts arrive beside them. What counts is the time from token to
token of the streams, and the time to the first token of the long prompts. Mode `apart` is the bound of any hand-over: streams
ask the one process, long prompts the other, and nothing is moved. Every load is measured in all modes by turns, `--rounds`
times. Flags behind `--` go to every `penstock serve`.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.gpu.online import START_LIMIT_S, VOCABULARY, free_port, quantile

ANSWER_LIMIT_S = 60.0
SHORT = 24
"""Tokens of a stream's prompt: so short that a router computes it where it is answered, whatever is asked for."""
CHOICES = ("num_prefill", "num_local")
EVEN = 0.1
"""Of what clients wait: modes that differ by less are equal."""
BEGUN_S = time.perf_counter()
KEY = secrets.token_urlsafe(18)
ENVIRONMENT = {**os.environ, "PENSTOCK_REPLICA_KEY": KEY}


def say(*words: object) -> None:
    """With the seconds since the start: what takes long is seen while it does."""
    print(f"{time.perf_counter() - BEGUN_S:6.1f} s ", *words, flush=True)


@dataclass(frozen=True)
class Mix:
    """Streams at once, and long prompts a second of so many tokens."""

    users: int
    rate: float
    num_tokens: int
    num_answer: int = 96


@dataclass
class Seen:
    gaps_s: list[float] = field(default_factory=list)
    tpots_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    num_failed: int = 0


async def ask(port: int, num_prompt: int, num_answer: int, numbers: random.Random) -> list[float]:
    """When each part of a streamed answer came, the sending first; empty if it failed or took too long."""
    try:
        return await asyncio.wait_for(_ask(port, num_prompt, num_answer, numbers), ANSWER_LIMIT_S)
    except TimeoutError:
        return []


async def _ask(port: int, num_prompt: int, num_answer: int, numbers: random.Random) -> list[float]:
    body = {"model": "default", "prompt": [numbers.choice(VOCABULARY) for _ in range(num_prompt)], "stream": True}
    content = json.dumps(body | {"max_tokens": num_answer, "temperature": 0, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(content)}\r\n"
    head += f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    times = [time.perf_counter()]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.write(head.encode() + content)
        async for line in reader:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
        writer.close()
    except OSError:
        return []
    return times if len(times) > 1 else []


async def run(mix: Mix, port: int, seconds: float, seed: str, name: str, long_port: int | None = None) -> Seen:
    """The same seed gives the same arrivals; other names ask other prompts, which no cache has."""
    numbers, arrivals, seen = random.Random(f"{seed}/{name}"), random.Random(seed), Seen()
    end_s = time.perf_counter() + seconds

    async def stream() -> None:
        while time.perf_counter() < end_s:
            times = await ask(port, SHORT, mix.num_answer, numbers)
            gaps = [late - early for early, late in itertools.pairwise(times[1:])]
            seen.num_failed += not gaps
            seen.gaps_s += gaps
            seen.tpots_s += [sum(gaps) / (mix.num_answer - 1)] if gaps else []

    async def long() -> None:
        times = await ask(long_port or port, mix.num_tokens, 4, numbers)
        seen.num_failed += not times
        seen.ttfts_s += [times[1] - times[0]] if times else []

    tasks = [asyncio.create_task(stream()) for _ in range(mix.users)]
    while time.perf_counter() < end_s:
        await asyncio.sleep(arrivals.expovariate(mix.rate))
        tasks.append(asyncio.create_task(long()))
    await asyncio.gather(*tasks)
    return seen


def told(seen: Seen) -> dict[str, float]:
    def ms(values: list[float], share: float) -> float:
        return round(1000 * quantile(values, share), 1) if values else 0.0

    def mean(values: list[float]) -> float:
        return round(1000 * sum(values) / len(values), 2) if values else 0.0

    return {
        "tpot_mean_ms": mean(seen.tpots_s),
        "long_ttft_mean_ms": mean(seen.ttfts_s),
        "tpot_p50_ms": ms(seen.tpots_s, 0.5),
        "tpot_p95_ms": ms(seen.tpots_s, 0.95),
        "gap_p99_ms": ms(seen.gaps_s, 0.99),
        "long_ttft_p50_ms": ms(seen.ttfts_s, 0.5),
        "long_ttft_p95_ms": ms(seen.ttfts_s, 0.95),
        "streams": len(seen.tpots_s),
        "long": len(seen.ttfts_s),
        "failed": seen.num_failed,
    }


@contextmanager
def begun(*words: str, log: Path, core: str = "") -> Iterator[None]:
    """A command of penstock, until the end, on its own core if one is named; what it says goes to a file."""
    with log.open("wb") as file:
        command = [*(("taskset", "-c", core) if core else ()), sys.executable, "-m", "penstock", *words]
        process = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, stdout=file, stderr=file)
        try:
            yield
        except SystemExit:
            say(*words, "said last:\n", log.read_text(errors="replace")[-1500:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def fetched(port: int, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return str(answer.read().decode())


def until(port: int, path: str, words: str, count: int = 1) -> None:
    end_s = time.perf_counter() + START_LIMIT_S
    while time.perf_counter() < end_s:
        try:  # a server that starts may take a connection and say nothing
            if fetched(port, path).count(words) >= count:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"no {words} at {path} after {START_LIMIT_S:.0f} s")


def chosen(router: int) -> dict[str, float]:
    """How many prompts were computed elsewhere, and how many where they are answered."""
    found = re.findall(
        r'^penstock_router_handover_choices\S*\{.*choice="(\w+)".*\} (\S+)$', fetched(router, "/metrics"), re.M
    )
    return {name: sum(float(count) for choice, count in found if choice == name) for name in ("prefill", "local")}


@dataclass(frozen=True)
class Way:
    """How requests are sent: a port for streams, one for long prompts, and the router that decides, if one does."""

    name: str
    port: int
    long_port: int
    router: int | None = None

    def warm(self, mix: Mix) -> None:
        """Have made whatever is made when it is first needed."""
        asyncio.run(run(Mix(2, 1.0, mix.num_tokens, 8), self.port, 2.0, "warm", self.name))

    def measure(self, mix: Mix, seconds: float, seed: str, all_seen: Seen) -> dict[str, Any]:
        """Of all rounds so far."""
        before = None if self.router is None else chosen(self.router)
        seen = asyncio.run(run(mix, self.port, seconds, seed, self.name, self.long_port))
        for field_ in fields(Seen):
            setattr(all_seen, field_.name, getattr(all_seen, field_.name) + getattr(seen, field_.name))
        row: dict[str, Any] = {"how": self.name, "users": mix.users, "rate": mix.rate, "tokens": mix.num_tokens}
        row |= told(all_seen)
        if self.router is not None and before is not None:
            row |= {f"num_{choice}": count - before[choice] for choice, count in chosen(self.router).items()}
        return row


def measured(ways: list[Way], mixes: list[Mix], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """A row for each load and way; long prompts come at the same times for all."""
    for way in ways:
        way.warm(mixes[0])
    rows = []
    for number, mix in enumerate(mixes):
        seen, found = {way.name: Seen() for way in ways}, {}
        for turn in range(rounds):
            for way in ways if turn % 2 == 0 else reversed(ways):
                row = way.measure(mix, seconds, f"{number}/{turn}", seen[way.name])
                counts = {key: row[key] + found.get(way.name, row | {key: 0})[key] for key in row if key in CHOICES}
                found[way.name] = row | counts
        for way in ways:
            say(*(f"{key} {value} " for key, value in found[way.name].items()))
            rows.append(found[way.name])
    return rows


def waited(row: dict[str, Any], least_tpot_ms: float) -> float:
    """Seconds that clients wait in a second: long prompts for their first token, streams for tokens that come late."""
    late = 1.0 - least_tpot_ms / row["tpot_mean_ms"] if row["tpot_mean_ms"] else 1.0
    return float(row["rate"] * row["long_ttft_mean_ms"] / 1000 + row["users"] * late)


def judge(rows: list[dict[str, Any]], mixes: list[Mix]) -> None:
    """Whether the rule moved prompts where moving was better, and left them where not; equal within a tenth is either."""
    num_right = 0
    for number, mix in enumerate(mixes):
        by_mode = {
            mode: [row for row in rows if row["how"] == f"1P1D {mode}"][number] for mode in ("always", "never", "auto")
        }
        least_ms = min(row["tpot_mean_ms"] for row in by_mode.values())
        costs = {mode: waited(row, least_ms) for mode, row in by_mode.items()}
        auto = by_mode["auto"]
        pick = "always" if auto["num_prefill"] > auto["num_local"] else "never"
        is_even = abs(costs["always"] - costs["never"]) <= EVEN * max(costs["always"], costs["never"])
        is_right = is_even or costs[pick] == min(costs["always"], costs["never"])
        num_right += is_right
        shown = ", ".join(f"{mode} {cost:.2f}" for mode, cost in costs.items())
        say(f"{mix.users}:{mix.rate}:{mix.num_tokens} waited {shown}; picked {pick}", "right" if is_right else "WRONG")
    say(f"the rule was right in {num_right} of {len(mixes)} loads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dummy:llama-3.1-8b")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=1, help="of all modes, for every load")
    parser.add_argument("--mixes", default="16:1:4000,32:2:2000", help="users:long prompts a second:tokens, several")
    parser.add_argument("--modes", default="always,auto,never", help="of the router, or apart")
    parser.add_argument("--cores", default="", help="of the prefill and of the decode process, such as 0,1")
    parser.add_argument("--answer", type=int, default=96, help="tokens of a stream's answer")
    parser.add_argument("--no-one", action="store_true", help="leave out the one engine")
    parser.add_argument("--one-by-one", action="store_true", help="start servers one after another")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    mixes = [
        Mix(int(one[0]), float(one[1]), int(one[2]), arguments.answer)
        for one in (m.split(":") for m in arguments.mixes.split(","))
    ]
    ports = [free_port() for _ in range(3)]
    replica = ("serve", arguments.model, *arguments.flags, "--port")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # servers end with it
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-roles-")))
        for port, role, core in zip(ports, ("", "prefill", "decode"), ("", *arguments.cores.split(","), "", "")):
            if arguments.no_one and not role:
                continue
            words = ("--role", role) if role else ()
            stack.enter_context(begun(*replica, str(port), *words, log=folder / f"{role or 'one'}.log", core=core))
            if arguments.one_by_one:
                until(port, "/readyz", '"ready"')
        for port in ports[arguments.no_one : 3]:
            until(port, "/readyz", '"ready"')
            say("ready", port)
        ways = [] if arguments.no_one else [Way("one engine", ports[0], ports[0])]
        urls = [f"--replica=http://127.0.0.1:{port}" for port in ports[1:3]]
        for mode in arguments.modes.split(","):
            if mode == "apart":
                ways.append(Way("no hand-over", ports[2], ports[1]))
                continue
            port = free_port()
            words = ("route", *urls, "--port", str(port), f"--handover={mode}", "--policy=prefix-reported")
            stack.enter_context(begun(*words, log=folder / f"router-{mode}.log"))
            until(port, "/router/replicas", '"role":"', 2)
            ways.append(Way(f"1P1D {mode}", port, port, port))
        rows = measured(ways, mixes, arguments.seconds, arguments.rounds)
        for line in re.findall(r"^penstock_kv_transfer\S* .*$", fetched(ports[2], "/metrics"), re.MULTILINE):
            if not line.endswith(" 0"):
                say("   ", line)
    if {"always", "never", "auto"} <= set(arguments.modes.split(",")):
        judge(rows, mixes)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
