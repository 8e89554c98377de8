"""Finalists served for real: a server of each, the same requests to one after another, round by round."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from penstock.config import ModelConfig
from penstock.console.args import arguments_of
from penstock.errors import EngineError
from penstock.metrics.summary import Slo
from penstock.service.upstream.ask import is_ready
from penstock.service.upstream.endpoint import endpoint_of
from penstock.tools.bench.client.counters import Counters
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.target import TargetServer, find_target
from penstock.tools.bench.load import LoadShape, run_plan
from penstock.tools.bench.plan import TrafficPlan
from penstock.tools.bench.report.figures import figures_of
from penstock.tools.bench.report.flags import flags_of
from penstock.tools.measure.live import Disturbance
from penstock.tools.tune.setting import Setting
from penstock.tools.tune.turns import Contest

START_S = 300.0
IDLE_S = 0.4
"""How long nothing is asked before a round, to see what others use of the machine."""
WARM_UP, WARM_UP_TOKENS = 6, 8
NUM_FIRST_ROUNDS, NUM_LAST = 2, 2
"""Rounds with all contenders; from then on so many of them, the best, are measured."""
ADDRESS = re.compile(r"http://[^\s/]+")

PlanOf = Callable[[int, str], TrafficPlan]
"""The requests of a round; the words of each run are its own."""


@dataclass
class LiveServer:
    """`penstock serve` with one setting, from when it is needed to the end of the measurement."""

    setting: Setting
    model: ModelConfig
    kv_memory: str = ""
    """Of the cache, where several servers share the memory."""
    words: tuple[str, ...] = ()
    """Further flags."""
    process: "subprocess.Popen[str] | None" = None
    client: Client | None = None
    target: TargetServer | None = None

    def _start(self) -> str:
        """Where it listens, once it is ready."""
        words = [*arguments_of(self.model), "--port", "0", "--no-tuned", "--log-level", "warning", *self.setting.flags]
        words += ["--kv-memory", self.kv_memory] if self.kv_memory and not self.setting.kv_memory else []
        words += self.words
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        found = next(filter(None, map(ADDRESS.search, self.process.stdout or ())), None)
        if found is None:
            raise EngineError(f"a server with {self.setting.label} did not start; try penstock serve with these flags")
        end_s = time.monotonic() + START_S
        while not is_ready(found[0], timeout_s=5.0):
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise EngineError(f"a server with {self.setting.label} did not become ready")
            time.sleep(0.2)
        return found[0]

    async def open(self) -> None:
        self.client = Client(endpoint_of(await asyncio.to_thread(self._start)))
        self.target = await find_target(self.client, "", "completions", f"tune {self.setting.label}")

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = self.target = None
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None


@dataclass
class LiveContest:
    """Rounds until chance is excluded or the time is over. `keeps` leaves servers running between rounds, which takes memory
    for all of them."""

    servers: Sequence[LiveServer]
    """The default first."""
    plan_of: PlanOf
    slo: Slo
    keeps: bool
    show: Callable[[str], None]
    contest: Contest = field(init=False)
    doubts: list[str] = field(default_factory=list)
    idle_fractions: list[float] = field(default_factory=list)
    good: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.contest = Contest(tuple(one.setting.label for one in self.servers[1:]))

    async def run(self, end_s: float) -> Contest:
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
            if self.keeps and time.monotonic() < end_s:
                self.show(f"starting {len(self.servers)} servers")
                await asyncio.gather(*(self._open(server) for server in self.servers))
            longest_s, number = 0.0, 0
            while not self.contest.is_over and time.monotonic() + longest_s < end_s:
                begin_s = time.monotonic()
                await self._round(number)
                longest_s = max(longest_s, time.monotonic() - begin_s) if number else time.monotonic() - begin_s
                number += 1
                if number == NUM_FIRST_ROUNDS:
                    self.contest.narrow(NUM_LAST)
        return self.contest

    async def _round(self, number: int) -> None:
        """Who goes first changes from round to round."""
        remaining = self.contest.remaining
        taking = [one for place, one in enumerate(self.servers) if not place or one.setting.label in remaining]
        shift = number % len(taking)
        values: dict[str, float] = {}
        for server in (*taking[shift:], *taking[:shift]):
            name = "" if server is self.servers[0] else server.setting.label
            self.show(f"round {number + 1}: {server.setting.label}")
            values[name] = await self._measure(server, number)
            self.good.setdefault(server.setting.label, []).append(values[name])
            if not self.keeps:
                server.stop()
        self.contest.add(values)

    async def _open(self, server: LiveServer) -> None:
        """Start it and ask it a few things, so that the first round finds it warm. A setting that this model does not start
        with answers nothing; the default must."""
        try:
            await server.open()
        except EngineError as error:
            server.stop()
            if server is self.servers[0]:
                raise
            self._doubt(str(error))
            return
        asks = [
            replace(ask, turns=tuple(replace(turn, num_answer=WARM_UP_TOKENS) for turn in ask.turns[:1]))
            for ask in self.plan_of(0, "warm up").asks[:WARM_UP]
        ]
        if server.client is not None and server.target is not None:
            await run_plan(server.client, server.target, TrafficPlan(tuple(asks)), LoadShape(users=2))

    async def _measure(self, server: LiveServer, number: int) -> float:
        """Share of the requests that were served in time."""
        if server.process is None:
            await self._open(server)
        client, target = server.client, server.target
        if client is None or target is None:
            return 0.0
        idle = Disturbance()
        await asyncio.sleep(IDLE_S)
        self.idle_fractions.append(idle.fraction or 0.0)
        plan = self.plan_of(number, f"round {number} {server.setting.label} ")
        measured = await run_plan(client, target, plan, LoadShape(stops=False, timeout_s=120.0))
        figures = figures_of(measured, plan, target, self.slo, Counters())
        for doubt in flags_of(figures):
            if doubt.name in ("client-bound", "server-gone"):
                self._doubt(doubt.text)
        return figures.summary.good_fraction * figures.summary.num_requests / max(plan.num_requests, 1)

    def _doubt(self, text: str) -> None:
        if text not in self.doubts:
            self.doubts.append(text)
