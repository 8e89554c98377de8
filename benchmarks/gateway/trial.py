"""An operator's trial: two gateways on one PostgreSQL before three servers, and everything that can go away goes away.

    python -m benchmarks.gateway.trial --requests 1000 --spenders 64

Sixty-four spenders of two tenants ask in every dialect, streamed and whole. Every ten seconds a server is killed and started
again, and another is stopped for six and goes on as if nothing had been (it hangs); a fourth replica, which says that it is
ready and serves the model, answers with rubbish all the time (it lies). The database is stopped in mid-load and comes back.
Then it is counted: requests without an answer (lost), answers that are not the oracle's (wrong), dollars beyond the budget
(overspent), answered requests without a record of their usage (unrecorded). Each must be 0.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from penstock.assembly.fleet.gateway import open_gateway_database
from penstock.service.gateway.accounts.budgets import budgets
from penstock.service.gateway.keys import create_key
from penstock.service.gateway.settings import read_settings
from tests.gateway.postgres import Postgres, postgres
from tests.server.serving import ROOT, chat_text, oracle_text, user

MODEL = "oracle:step_ms=2"
BUDGET_USD = 0.012
REPLICA_KEY = "a-key-between-them"
RULES = """
database = "{url}"
journal = "{folder}/journal"
max_wait_s = 1e6
max_pending = 100000
unbounded_tokens = 64
[prices."*"]
input = 1.0
output = 1.0
batch = 0.5
[tenants.poor]
budget_usd = {budget}
budget_period = "total"
"""
SDK_TRIES = 12
"""As clients do: a refusal that says when to come back is asked again."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fleet:
    """Servers and routers as processes, which end with the stack."""

    def __init__(self, folder: Path, rules: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(4)]
        self.servers = [self._serve(number) for number in range(3)]
        words = [sys.executable, "-m", "benchmarks.gateway.liar", str(self.ports[3]), MODEL]
        self.liar = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT)
        self.urls = []
        self.routers = []
        for number in range(2):
            port = free_port()
            replicas = [f"--replica=r{one}=http://127.0.0.1:{self.ports[one]}" for one in range(4)]
            words = ["route", *replicas, f"--gateway={rules}", f"--port={port}", "probe-s=0.2", "wait-s=30"]
            self.routers.append(self._start(words, f"router-{number}"))
            self.urls.append(f"http://127.0.0.1:{port}")

    def kill(self, number: int) -> None:
        self.servers[number].kill()
        self.servers[number].wait()
        self.servers[number] = self._serve(number)

    def hang(self, number: int, seconds: float) -> None:
        """It neither answers nor closes anything; it may be killed meanwhile."""
        hung = self.servers[number]
        hung.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        hung.send_signal(signal.SIGCONT)

    def num_lies(self) -> int:
        self.liar.terminate()
        return int(self.liar.communicate()[0].split()[-1])

    def close(self) -> None:
        for one in (*self.routers, *self.servers, self.liar):
            one.terminate()
        for one in (*self.routers, *self.servers, self.liar):
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()

    def _serve(self, number: int) -> "subprocess.Popen[bytes]":
        data = self.folder / f"data-{number}"
        words = ["serve", MODEL, f"--port={self.ports[number]}", f"--data-dir={data}", "--num-blocks=2048"]
        return self._start(words, f"server-{number}", PENSTOCK_API_KEY=REPLICA_KEY)

    def _start(self, words: list[str], name: str, **environment: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PENSTOCK_REPLICA_KEY": REPLICA_KEY, **environment}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "penstock", *words], stdout=log, stderr=log, env=environment, cwd=self.folder
            )


class Trial:
    def __init__(self, fleet: Fleet, keys: dict[str, str], seed: int) -> None:
        self.fleet = fleet
        self.keys = keys
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.answered: list[str] = []
        """Ids of requests of which something was made."""
        self.numbers = itertools.count()

    async def ask(self, http: httpx.AsyncClient, number: int) -> None:
        tenant = "poor" if number % 2 else "rich"
        path, body, expected = self.call(number)
        headers = {"authorization": f"Bearer {self.keys[tenant]}", "x-request-id": f"trial-{number}"}
        is_stream = bool(body.get("stream"))
        for tries in range(SDK_TRIES):
            url = self.fleet.urls[(number + tries) % 2]
            try:
                answer = await http.post(url + path, json=body, headers=headers)
            except httpx.TransportError as error:
                self.faults.append(f"{path}: {error!r}")
                self.counts["lost"] += 1
                return
            if (
                answer.status_code in (503, 529) and "retry-after" in answer.headers
            ):  # the database or all servers are away
                self.counts["asked again"] += 1
                await asyncio.sleep(0.5 + tries)
                continue
            break
        if answer.status_code == 429 and tenant == "poor":
            self.counts["refused, budget used up"] += 1
        elif answer.status_code != 200:
            self.counts["lost"] += 1
            self.faults.append(f"{path} {answer.status_code}: {answer.text[:200]}")
        elif (text := said(path, answer.text, is_stream)) != expected:
            self.counts["wrong"] += 1
            self.faults.append(f"{path} stream={is_stream}: {text!r} instead of {expected!r}: {answer.text[-200:]}")
        else:
            self.counts["answered"] += 1
            self.answered.append(f"trial-{number}")

    def call(self, number: int) -> tuple[str, dict[str, Any], str]:
        """A call, and what the oracle says to it."""
        content, count = f"call {number}", self.rng.choice((4, 12, 30))
        chat = {"messages": user(content), "temperature": 0}
        stream = {"stream": self.rng.random() < 0.5}
        rows = (
            ("/v1/chat/completions", chat | {"max_tokens": count} | stream, chat_text(content, count)),
            ("/v1/completions", {"prompt": content, "temperature": 0, "max_tokens": count} | stream,
             oracle_text(content, count)),
            ("/v1/messages", chat | {"model": MODEL, "max_tokens": count} | stream, chat_text(content, count)),
            ("/v1/responses", {"input": content, "temperature": 0, "max_output_tokens": count} | stream,
             chat_text(content, count)),
            ("/api/chat", {"model": MODEL, "messages": user(content),
                           "options": {"temperature": 0, "num_predict": count}} | stream, chat_text(content, count)),
        )  # fmt: skip
        return self.rng.choice(rows)


def said(path: str, text: str, is_stream: bool) -> str:
    """The words of an answer, of whatever dialect."""
    if path == "/api/chat":
        return "".join(json.loads(line)["message"]["content"] for line in text.split("\n") if line)
    if not is_stream:
        value = json.loads(text)
        if path == "/v1/messages":
            return "".join(block["text"] for block in value["content"])
        if path == "/v1/responses":
            return "".join(part["text"] for item in value["output"] for part in item["content"])
        choice = value["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    events = [json.loads(one) for one in re.findall(r"^data: (\{.*)$", text, re.MULTILINE)]
    if path == "/v1/messages":
        return "".join(one["delta"].get("text", "") for one in events if one["type"] == "content_block_delta")
    if path == "/v1/responses":
        return "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    choices = [choice for one in events for choice in one.get("choices", ())]
    return "".join(c.get("delta", {}).get("content") or "" if "delta" in c else c["text"] for c in choices)


async def run(trial: Trial, database: Postgres, options: argparse.Namespace) -> None:
    numbers = iter(range(options.requests))
    done = asyncio.Event()

    async def spender(http: httpx.AsyncClient) -> None:
        for number in numbers:
            await trial.ask(http, number)
            await asyncio.sleep(options.pause_s)

    async def again(name: str, first_s: float, harm: Callable[[int], None], turn: int) -> None:
        """A harm every ten seconds, to one server after the other."""
        await asyncio.sleep(first_s)
        for number in itertools.count(turn):
            if done.is_set():
                return
            began_s = time.monotonic()
            await asyncio.to_thread(harm, number % 3)
            trial.counts[name] += 1
            await asyncio.sleep(options.kill_s - (time.monotonic() - began_s))

    def hang(number: int) -> None:
        trial.fleet.hang(number, options.hang_s)

    async def outage() -> None:
        while len(trial.answered) < options.requests // 4:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(database.stop)
        await asyncio.sleep(options.outage_s)
        await asyncio.to_thread(database.start)
        trial.counts["database outages"] += 1

    killing = asyncio.create_task(again("servers killed", options.kill_s, trial.fleet.kill, 0))
    hanging = asyncio.create_task(again("servers hung", options.kill_s / 2, hang, 1))
    away = asyncio.create_task(outage())
    limits = httpx.Limits(max_connections=options.spenders, max_keepalive_connections=options.spenders)
    async with httpx.AsyncClient(timeout=120.0, verify=False, limits=limits) as http:
        await asyncio.gather(*(spender(http) for _ in range(options.spenders)))
        done.set()
        await asyncio.gather(killing, hanging, away, return_exceptions=True)


def judged(trial: Trial, rules: Path) -> dict[str, Any]:
    """Once every record is written: what the database says."""
    database = open_gateway_database(read_settings(rules))
    wanted, end_s = set(trial.answered), time.monotonic() + 60.0
    while True:
        rows = database.read(lambda t: t.rows("SELECT request_id, tenant, cost FROM usage_records")).result()
        (limit,) = budgets(database)
        missing = wanted - {str(row[0]) for row in rows}
        if (not missing and not limit.reserved) or time.monotonic() > end_s:
            break
        time.sleep(0.5)
    database.close()
    charged = sum(int(row[2]) for row in rows if row[1] == "poor")
    once = Counter(str(row[0]) for row in rows)
    return {
        **trial.counts,
        "lost": trial.counts["lost"],
        "wrong": trial.counts["wrong"],
        "unrecorded": len(missing),
        "recorded twice": sum(count > 1 for count in once.values()),
        "overspent_usd": max(limit.spent - limit.amount, 0) / 1e9,
        "budget_usd": limit.amount / 1e9,
        "spent_usd": limit.spent / 1e9,
        "charged_usd": charged / 1e9,
        "reserved_usd": limit.reserved / 1e9,
    }


@contextmanager
def started(folder: Path, rules: Path):
    fleet = Fleet(folder, rules)
    try:
        with httpx.Client(verify=False) as http:
            for url in fleet.urls:
                while True:
                    try:
                        if http.get(url + "/readyz").status_code == 200:
                            break
                    except httpx.TransportError:
                        pass
                    time.sleep(0.2)
        yield fleet
    finally:
        fleet.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--spenders", type=int, default=64)
    parser.add_argument("--kill-s", type=float, default=10.0)
    parser.add_argument("--hang-s", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--outage-s", type=float, default=6.0)
    parser.add_argument("--pause-s", type=float, default=5.0)
    parser.add_argument("--budget-usd", type=float, default=BUDGET_USD)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-trial-")))
        server = stack.enter_context(postgres())
        rules = folder / "gateway.toml"
        rules.write_text(RULES.format(url=server.url, folder=folder, budget=options.budget_usd))
        database = open_gateway_database(read_settings(rules))
        keys = {name: create_key(database, name="", tenant=name, now=time.time())[0] for name in ("poor", "rich")}
        database.close()
        fleet = stack.enter_context(started(folder, rules))
        trial = Trial(fleet, keys, options.seed)
        start_s = time.monotonic()
        asyncio.run(run(trial, server, options))
        report = judged(trial, rules) | {"seconds": round(time.monotonic() - start_s, 1)}
        report["lies told"] = fleet.num_lies()
        for number in range(2) if trial.faults else ():
            print((folder / f"router-{number}.log").read_text()[-6000:], file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    for fault in trial.faults[:20]:
        print(fault, file=sys.stderr)
    return int(any(report[name] for name in ("lost", "wrong", "unrecorded", "recorded twice", "overspent_usd")))


if __name__ == "__main__":
    sys.exit(main())
