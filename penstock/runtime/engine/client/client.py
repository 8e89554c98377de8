"""The engine as the server sees it: submit, cancel, streams of deltas; and the supervisor that keeps it alive.

When the engine's process dies or hangs, a new one is started and given all requests in progress (`requests`). Request ids are
never reused, and a process that was given up is never heard again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from penstock.config import EngineConfig
from penstock.errors import CapacityError, ConfigError, EngineError, PenstockError
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import SchedulerLoad
from penstock.runtime.engine.adapters.gate import AdapterAnswer, AdapterCounts, AdapterOrder
from penstock.runtime.engine.child import Child
from penstock.runtime.engine.client.pulse import Pulse
from penstock.runtime.engine.client.requests import GONE, SHUTTING_DOWN, OpenRequests
from penstock.runtime.engine.machine import Facts, Vector
from penstock.runtime.engine.observer import EngineView
from penstock.runtime.engine.peers.counts import TransferCounts
from penstock.runtime.engine.spawn import Spawned
from penstock.runtime.engine.stream import DeltaStream
from penstock.runtime.engine.tiers.news import TierCounts
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder
from penstock.runtime.engine.wire import (
    Beat,
    BlocksChanged,
    Command,
    Embedded,
    EmbedPrompts,
    Failed,
    FollowBlocks,
    LookCommand,
    OrderAdapter,
    OrderCache,
    Ordered,
    Phase,
    Ready,
    Report,
    Seen,
    StepReport,
    Stop,
    decode_report,
)

LOGGER = logging.getLogger(__name__)
IDLE = SchedulerLoad(0, 0, 0, 0.0, 0)
MAX_FAILED_STARTS = 3
"""Processes in a row that may end before they are useful; then supervision gives up."""
USEFUL_S = 2.0
"""An engine that was ready this long was a good one, whatever ended it; so was one that a request may have ended."""
WATCH_S = 0.25
STOP_S = 2.0

OnStep = Callable[[StepReport], None]
OnPhase = Callable[[str, float], None]


class EngineClient:
    """Lives on one event loop. `run` supervises until `stop`, or raises when the engine cannot be kept alive."""

    def __init__(
        self, command: Sequence[str], config: EngineConfig, *, hang_s: float = 10.0, spawned: Spawned | None = None
    ) -> None:
        """`spawned` is the first process of that command, if it was started already."""
        self.facts: Facts | None = None
        """Known once an engine has been ready."""
        self.load = IDLE
        self.num_steps = 0
        self.num_restarts = 0
        self.num_supervision_faults = 0
        """Faults of supervision itself, each caught where it happened."""
        self.on_step: OnStep | None = None
        """Called with every step before its readers are: metrics listen here."""
        self.on_phase: OnPhase | None = None
        self.on_view: Callable[[EngineView], None] | None = None
        """Called with each view while `look` is asked for."""
        self.on_blocks: Callable[[BlocksChanged], None] | None = None
        """Called with changes of the prefix cache after `follow_blocks`; with all of it when an engine starts or ends."""
        self.ready = asyncio.Event()
        self.config = config
        self._command = command
        self._spawned = spawned
        self._setup = msgspec.json.encode(config)
        self._child: Child | None = None
        self._requests = OpenRequests(self._send)
        self.cancel, self.cancel_choice = self._requests.cancel, self._requests.cancel_choice
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """Answers that are awaited, by the number of their command."""
        self.tiers: TierCounts | None = None
        """What the engine last said of blocks beyond its device."""
        self.adapters: AdapterCounts | None = None
        """What the engine last said of its adapters."""
        self.transfers: TransferCounts | None = None
        """What the engine last said of its peers; None before that, and where there are none."""
        self._ids = count(1)
        self._pulse = Pulse(hang_s)
        self._begun_s = self._ready_s = 0.0
        self._ready_for_s = 0.0
        """How long the last engine was ready."""
        self._is_restart = False
        self._phases: list[tuple[str, float]] = []
        """Parts of the present engine's start."""
        self._last_words: Failed | None = None
        self._is_stopping = False

    # Queries

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set()

    @property
    def silence_s(self) -> float:
        """Seconds since the engine last sent something."""
        return time.monotonic() - self._pulse.heard_s

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def streams(self) -> tuple[DeltaStream, ...]:
        return self._requests.streams

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that even an idle engine could not serve."""
        facts = self.facts
        if facts is not None:
            limits = Limits(
                facts.num_blocks, facts.block_size, facts.max_context, 1, 1, facts.max_waiting, facts.max_waiting_tokens
            )
            limits.longest(request)

    # Commands

    def next_id(self) -> int:
        """A request id, never given before."""
        return next(self._ids)

    def submit(self, request: Request) -> DeltaStream:
        """Hand over a request; while the engine restarts it waits here. The stream always ends in a finish."""
        if self._is_stopping:
            raise CapacityError(SHUTTING_DOWN)
        stream = self._requests.add(request)
        if self.is_ready:
            self._requests.give(stream)
        return stream

    def look(self, seconds: float) -> None:
        """Ask the engine for views of itself for so many seconds."""
        if self._child is not None and self.is_ready:
            self._child.send(LookCommand(seconds))

    def follow_blocks(self, on_blocks: Callable[[BlocksChanged], None]) -> None:
        self.on_blocks = on_blocks
        if self._child is not None and self.is_ready:
            self._child.send(FollowBlocks())

    async def embed(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Vector, ...]:
        number = self.next_id()
        vectors: tuple[Vector, ...] = await self._ask(number, EmbedPrompts(number, tuple(prompts)))
        return vectors

    async def order_adapter(self, path: str, *, is_unload: bool = False) -> AdapterAnswer:
        """Have an adapter read, anew if it was before, or forgotten once nobody uses it."""
        order = AdapterOrder(self.next_id(), path, is_unload)
        answer: AdapterAnswer = await self._ask(order.order_id, OrderAdapter(order))
        return answer

    async def order_cache(self, action: str, name: str = "", seconds: float = 0.0) -> CacheAnswer:
        """List sessions, or pin, drop, export or import one."""
        order = CacheOrder(self.next_id(), action, name, seconds)
        answer: CacheAnswer = await self._ask(order.order_id, OrderCache(order))
        return answer

    async def _ask(self, number: int, command: Command) -> Any:
        """Send a command that the engine answers once, under that number."""
        if self._child is None or not self.is_ready:
            raise CapacityError("the engine is not ready; try again in a moment")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._child.send(command)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def reopen(self) -> None:
        """After `stop` and the end of `run`: allow another `run`. Ids, counters and facts stay."""
        self._is_stopping = False

    async def stop(self) -> None:
        """End the engine. Requests still open end in an error."""
        self._is_stopping = True
        child = self._child
        if child is not None:
            if self.is_ready:
                child.send(Stop())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(child.wait(), STOP_S)
            child.kill()

    # The supervisor

    async def run(self) -> None:
        """Keep an engine alive until `stop`. Raises ConfigError or EngineError when a restart cannot help."""
        num_failed = 0
        is_new, self._is_restart = True, False
        try:
            while not self._is_stopping:
                status = await self._live()
                is_new = is_new and not self._ready_for_s
                is_good = self._ready_for_s > USEFUL_S or (self._ready_for_s > 0.0 and len(self._requests) > 0)
                num_ended = self._end_requests()
                if self.is_stopping:
                    return
                num_failed = 0 if is_good else num_failed + 1
                words = self._last_words
                if words is not None and (words.is_config or is_new):
                    raise ConfigError(words.message) if words.is_config else EngineError(words.message)
                if num_failed >= MAX_FAILED_STARTS or is_new:
                    raise EngineError(
                        f"the engine ended {num_failed} times in a row without an answer, {_named(status)}"
                    )
                because = f" ({words.message})" if words is not None else ""
                message = "the engine ended, %s: %d requests end with it, %d wait for the next"
                LOGGER.error(message, _named(status) + because, num_ended, len(self._requests))
                self.num_restarts += 1
                self._is_restart = True
        finally:
            self._is_stopping = True
            self._report_ends(self._requests.end_all(SHUTTING_DOWN, time.monotonic()))

    async def _live(self) -> int:
        """One process, from its start to its end; returns its exit status."""
        self._last_words = None
        self._phases.clear()
        self._begun_s = time.monotonic()
        self._pulse.begin(self._begun_s)
        child = Child(self._spawned or Spawned(self._command), self._setup)
        self._spawned = None
        self._child = child
        if self._is_stopping:
            child.kill()
        tasks = [asyncio.create_task(self._listen(child)), asyncio.create_task(self._watch(child))]
        try:
            status = await child.wait()
            await self._receive_the_rest(tasks[0])
            return status
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ready_for_s = time.monotonic() - self._ready_s if self.is_ready else 0.0
            self.ready.clear()
            self._child = None
            await child.close()

    async def _receive_the_rest(self, listening: "asyncio.Task[None]") -> None:
        """Frames the process sent before it ended may still arrive: wait until none has come for a moment."""
        heard_s = -1.0
        while heard_s != self._pulse.heard_s and not listening.done():
            heard_s = self._pulse.heard_s
            await asyncio.sleep(0.02)

    async def _listen(self, child: Child) -> None:
        while True:
            frames = await child.receive()
            for number, frame in enumerate(frames, 1):
                try:
                    report = decode_report(frame)
                except PenstockError as error:
                    LOGGER.warning("%s; it is dropped", error)
                    continue
                self._pulse.heard_s = time.monotonic()
                try:
                    self._take_in(report, child, is_last=number == len(frames))
                except Exception:  # a fault of a listener: the engine must still be heard
                    self._count_fault("a report could not be taken in")
            self._requests.release(self._pulse.heard_s)
            await asyncio.sleep(0)  # frames that wait already must not keep the event loop from other tasks

    def _take_in(self, report: Report, child: Child, *, is_last: bool) -> None:
        match report:
            case StepReport():
                self._take_in_step(report, is_last=is_last)
            case Beat(num_loops, is_busy):
                self._pulse.beat(num_loops, self._pulse.heard_s, is_busy=is_busy)
            case Embedded(request_id, vectors, message):
                self._answer(request_id, EngineError(message) if message else vectors)
            case Ordered(adapters, sessions):
                answers: tuple[AdapterAnswer | CacheAnswer, ...] = (*adapters, *sessions)
                for one in answers:
                    self._answer(one.order_id, one)
            case Phase(name, seconds):
                self._phases.append((name, seconds))
                if self.on_phase is not None:
                    self.on_phase(name, seconds)
            case Seen(view):
                if self.on_view is not None:
                    self.on_view(view)
            case BlocksChanged():
                if self.on_blocks is not None:
                    self.on_blocks(report)
            case Failed():
                self._last_words = report
            case Ready(facts):
                self._begin(facts, child)

    def _take_in_step(self, step: StepReport, *, is_last: bool) -> None:
        now = self._pulse.moved_s = self._pulse.heard_s
        self.load = step.load
        self.adapters = step.adapters or self.adapters
        self.tiers = step.tiers or self.tiers
        self.transfers = step.transfers or self.transfers
        self.num_steps += 1
        if self.on_step is not None:
            self.on_step(step)
        self._requests.take_in(step, now, is_last=is_last)

    def _answer(self, number: int, value: Any) -> None:
        """Hand a value, or an error to be raised, to the task that waits for it."""
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return
        if isinstance(value, Exception):
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def _begin(self, facts: Facts, child: Child) -> None:
        """A new engine is ready: it is given all that waits."""
        self.facts = facts
        child.connect()
        self._ready_s = time.monotonic()
        self._pulse.begin(self._ready_s)
        self.ready.set()
        if self._is_restart:
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._phases)
            LOGGER.warning("the engine is back after %.1f s (%s)", self._ready_s - self._begun_s, parts)
        if self.on_blocks is not None:
            child.send(FollowBlocks())
        self._requests.give_all()

    def _send(self, command: Command) -> None:
        if self._child is not None:
            self._child.send(command)

    async def _watch(self, child: Child) -> None:
        """End a process that is silent, or whose step does not end. Time in which this process did not run is no silence."""
        while True:
            try:
                if await self._is_hung():
                    LOGGER.error("the engine hangs; its stacks follow, if it can print them")
                    with contextlib.suppress(Exception):
                        await child.dump_stacks()
                    child.kill()
                    return
            except Exception:
                self._count_fault("the watch over the engine failed")

    async def _is_hung(self) -> bool:
        """Look again after a moment."""
        before = time.monotonic()
        await asyncio.sleep(WATCH_S)
        late = time.monotonic() - before - WATCH_S
        if late > WATCH_S:
            self._pulse.forgive(late)
        return self.is_ready and self._pulse.is_hung(time.monotonic())

    def _count_fault(self, what: str) -> None:
        """Supervision never ends for a fault of its own."""
        self.num_supervision_faults += 1
        LOGGER.exception("%s (%d so far)", what, self.num_supervision_faults)

    def _end_requests(self) -> int:
        """The process is gone: end what cannot be resumed, which is counted, keep the rest for its successor."""
        self.load = IDLE
        if self.on_blocks is not None:
            self.on_blocks(BlocksChanged(is_whole=True))
        now = time.monotonic()
        ends = self._requests.end_all(SHUTTING_DOWN, now) if self._is_stopping else self._requests.end_unresumable(now)
        self._report_ends(ends)
        for number in list(self._asked):
            self._answer(number, CapacityError(GONE))
        return len({delta.request_id for delta in ends})

    def _report_ends(self, deltas: tuple[Delta, ...]) -> None:
        """Metrics hear of requests that ended without their engine."""
        if deltas and self.on_step is not None:
            self.on_step(StepReport(time.monotonic(), deltas, self.load, self.num_steps))


def _named(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"with exit status {status}"
