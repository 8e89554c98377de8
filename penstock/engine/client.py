"""The engine as the server sees it: submit, cancel, streams of deltas; and the supervisor that keeps it alive.

When the engine's process dies or hangs, a new one is started and given all requests in progress. Those that had begun
continue after the tokens already reported, recomputed like a preempted sequence. What cannot be resumed (some choices over,
prompt logprobs) ends in an error at once. Request ids are never reused, and a process that was given up is never heard
again.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from penstock.config import EngineConfig
from penstock.core.batch import Delta, Fault, Finish, FinishReason
from penstock.core.inspection import NO_PREFIX
from penstock.core.limits import Limits
from penstock.core.request import Request
from penstock.core.scheduler import SchedulerLoad
from penstock.engine.child import Child
from penstock.engine.machine import Facts, Vector
from penstock.engine.matching import GrammarTime, MatchingCounts
from penstock.engine.observer import EngineView, StepView
from penstock.engine.spawn import Spawned
from penstock.engine.stream import DeltaStream, folded
from penstock.engine.wire import (
    Beat,
    BlocksChanged,
    Cancel,
    Embedded,
    EmbedPrompts,
    Failed,
    FollowBlocks,
    LookCommand,
    Phase,
    Ready,
    Report,
    Seen,
    StepReport,
    Stop,
    Submit,
    decode_report,
    encode_config,
)
from penstock.errors import CapacityError, ConfigError, EngineError, PenstockError

__all__ = [
    "GONE",
    "NO_PREFIX",
    "SHUTTING_DOWN",
    "BlocksChanged",
    "DeltaStream",
    "EngineClient",
    "EngineView",
    "Facts",
    "GrammarTime",
    "MatchingCounts",
    "StepReport",
    "StepView",
    "Vector",
    "folded",
]

LOGGER = logging.getLogger(__name__)
IDLE = SchedulerLoad(0, 0, 0, 0.0, 0)
MAX_SENT = 3
"""Engines that a request is sent to, one after another as they die; then it ends in an error."""
MAX_FAILED_STARTS = 3
"""Processes in a row that may end before they are useful; then supervision gives up."""
USEFUL_S = 2.0
"""An engine that was ready this long was a good one, whatever ended it; so was one that a request may have ended."""
STEP_FACTOR = 6.0
"""A single step may take this many times as long as silence may."""
WATCH_S = 0.25
STOP_S = 2.0
GONE = "the engine stopped while answering; send the request again"
SHUTTING_DOWN = "the server is shutting down; send the request elsewhere"

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
        self.num_stumbles = 0
        """Faults of supervision itself, each caught where it happened."""
        self.on_step: OnStep | None = None
        """Called with every step before its readers are: metrics listen here."""
        self.on_phase: OnPhase | None = None
        self.on_view: Callable[[EngineView], None] | None = None
        """Called with each view while `look` is asked for."""
        self.on_blocks: Callable[[BlocksChanged], None] | None = None
        """Called with changes of the prefix cache after `follow_blocks`; with all of it when an engine starts or ends."""
        self.ready = asyncio.Event()
        self._command = command
        self._spawned = spawned
        self._setup = encode_config(config)
        self._hang_s = hang_s
        self._child: Child | None = None
        self._streams: dict[int, DeltaStream] = {}
        self._embeddings: dict[int, asyncio.Future[tuple[Vector, ...]]] = {}
        self._ids = count(1)
        self._heard_s = 0.0
        self._moved_s = 0.0
        """When the engine's loop last turned, or had nothing to do."""
        self._num_loops = 0
        self._ready_s = 0.0
        self._ready_for_s = 0.0
        """How long the last engine was ready."""
        self._last_words: Failed | None = None
        self._is_stopping = False
        self._suspects: deque[DeltaStream] = deque()
        """Requests that saw two engines die: given to the next engine one by one."""
        self._suspect: DeltaStream | None = None
        """The one of them that the engine has now."""

    # Queries

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set()

    @property
    def silence_s(self) -> float:
        """Seconds since the engine last sent something."""
        return time.monotonic() - self._heard_s

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def streams(self) -> tuple[DeltaStream, ...]:
        return tuple(self._streams.values())

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
        stream = DeltaStream(request)
        self._streams[request.request_id] = stream
        if self.is_ready:
            self._send(stream)
        return stream

    def cancel_choice(self, request_id: int, choice: int) -> None:
        """Cancel one choice of a request; the others continue."""
        if request_id in self._streams and self._child is not None:
            self._child.send(Cancel(request_id, choice))

    def cancel(self, request_id: int) -> None:
        """Forget a request, wherever it is; what still arrives for it is dropped."""
        stream = self._streams.pop(request_id, None)
        if stream is not None and self._child is not None:
            self._child.send(Cancel(request_id))
            self._acquit(stream)

    def look(self, seconds: float) -> None:
        """Ask the engine for views of itself for so many seconds."""
        if self._child is not None and self.is_ready:
            self._child.send(LookCommand(seconds))

    def follow_blocks(self, on_blocks: Callable[[BlocksChanged], None]) -> None:
        self.on_blocks = on_blocks
        if self._child is not None and self.is_ready:
            self._child.send(FollowBlocks())

    async def embed(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Vector, ...]:
        if self._child is None or not self.is_ready:
            raise CapacityError("the engine is not ready; try again in a moment")
        request_id = self.next_id()
        answer: asyncio.Future[tuple[Vector, ...]] = asyncio.get_running_loop().create_future()
        self._embeddings[request_id] = answer
        self._child.send(EmbedPrompts(request_id, tuple(prompts)))
        try:
            return await answer
        finally:
            self._embeddings.pop(request_id, None)

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
        is_new = True
        try:
            while not self._is_stopping:
                status = await self._live()
                is_new = is_new and not self._ready_for_s
                is_good = self._ready_for_s > USEFUL_S or (self._ready_for_s > 0.0 and bool(self._streams))
                self._bury(status)
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
                self.num_restarts += 1
        finally:
            self._is_stopping = True
            self._end_all(self._streams)

    async def _live(self) -> int:
        """One process, from its start to its end; returns its exit status."""
        self._last_words = None
        self._heard_s = self._moved_s = time.monotonic()
        child = Child(self._spawned or Spawned(self._command), self._setup)
        self._spawned = None
        self._child = child
        if self._is_stopping:
            child.kill()
        tasks = [asyncio.create_task(self._listen(child)), asyncio.create_task(self._watch(child))]
        try:
            status = await child.wait()
            await self._hear_the_rest(tasks[0])
            return status
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ready_for_s = time.monotonic() - self._ready_s if self.is_ready else 0.0
            self.ready.clear()
            self._child = None
            await child.close()

    async def _hear_the_rest(self, listening: "asyncio.Task[None]") -> None:
        """Frames the process sent before it ended may still arrive: wait until none has come for a moment."""
        heard_s = -1.0
        while heard_s != self._heard_s and not listening.done():
            heard_s = self._heard_s
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
                self._heard_s = time.monotonic()
                try:
                    self._take_in(report, child, is_last=number == len(frames))
                except Exception:  # a fault of a listener: the engine must still be heard
                    self._stumbled("a report could not be taken in")
            await asyncio.sleep(0)  # frames that wait already must not keep the event loop from other tasks

    def _take_in(self, report: Report, child: Child, *, is_last: bool) -> None:
        match report:
            case StepReport():
                self._take_in_step(report, is_last=is_last)
            case Beat(num_loops, is_busy):
                if num_loops != self._num_loops or not is_busy:
                    self._moved_s = self._heard_s
                self._num_loops = num_loops
            case Embedded(request_id, vectors, message):
                self._answer_embedding(request_id, vectors, message)
            case Phase(name, seconds):
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
        """Readers are woken at once unless more frames wait: then they find all of them together."""
        now = self._heard_s
        self._moved_s = now
        self.load = step.load
        self.num_steps += 1
        if self.on_step is not None:
            self.on_step(step)
        streams = self._streams
        for request_id, num_computed, _ in step.prompts:
            if request_id in streams:
                streams[request_id].num_computed = num_computed
        for delta in step.deltas:
            stream = streams.get(delta.request_id)
            if stream is None:
                continue  # cancelled while this was in flight
            if stream is self._suspect:
                self._acquit(stream)
            if delta.prefix is not None and stream.is_started and stream.request.resumed:
                delta = delta._replace(prefix=None)  # reported already, by another engine
            stream.push(delta, now, at_once=is_last)
            if not stream.unended:
                del streams[delta.request_id]

    def _answer_embedding(self, request_id: int, vectors: tuple[Vector, ...], message: str) -> None:
        answer = self._embeddings.get(request_id)
        if answer is None or answer.done():
            return
        if message:
            answer.set_exception(EngineError(message))
        else:
            answer.set_result(vectors)

    def _begin(self, facts: Facts, child: Child) -> None:
        """A new engine is ready: it is given all that waits."""
        self.facts = facts
        child.connect()
        self._moved_s = time.monotonic()
        self._num_loops = 0
        self._ready_s = self._moved_s
        self.ready.set()
        if self.on_blocks is not None:
            child.send(FollowBlocks())
        waiting = tuple(self._streams.values())
        self._suspects = deque(stream for stream in waiting if stream.num_sent >= MAX_SENT - 1)
        for stream in waiting:
            if stream.num_sent < MAX_SENT - 1:
                self._send(stream)
        self._send_suspect()

    def _send_suspect(self) -> None:
        """Give the engine the next request that may have killed others, one at a time, so that the guilty one is known."""
        self._suspect = None
        while self._suspects:
            stream = self._suspects.popleft()
            if stream.request.request_id in self._streams:
                self._suspect = stream
                self._send(stream)
                return

    def _acquit(self, stream: DeltaStream) -> None:
        if stream is self._suspect:
            self._send_suspect()

    def _send(self, stream: DeltaStream) -> None:
        if self._child is not None:
            stream.num_sent += 1
            self._child.send(Submit(stream.request))

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
                self._stumbled("the watch over the engine stumbled")

    async def _is_hung(self) -> bool:
        """Look again after a moment."""
        before = time.monotonic()
        await asyncio.sleep(WATCH_S)
        late = time.monotonic() - before - WATCH_S
        if late > WATCH_S:
            self._heard_s += late
            self._moved_s += late
        if not self.is_ready:
            return False
        now = time.monotonic()
        return now - self._heard_s > self._hang_s or now - self._moved_s > self._hang_s * STEP_FACTOR

    def _stumbled(self, what: str) -> None:
        """Supervision never ends for a fault of its own."""
        self.num_stumbles += 1
        LOGGER.exception("%s (%d so far)", what, self.num_stumbles)

    def _bury(self, status: int) -> None:
        """The process is gone: end what cannot be resumed, keep the rest for its successor."""
        self.load = IDLE
        if self.on_blocks is not None:
            self.on_blocks(BlocksChanged(is_whole=True))
        ending = {
            request_id: stream
            for request_id, stream in self._streams.items()
            if (stream.is_started and not stream.can_resume) or stream.num_sent >= MAX_SENT or self._is_stopping
        }
        if not self._is_stopping:
            num_kept = len(self._streams) - len(ending)
            message = "the engine ended, %s: %d requests end with it, %d wait for the next"
            LOGGER.error(message, _named(status), len(ending), num_kept)
        self._end_all(ending)
        for stream in self._streams.values():
            if stream.is_started:
                stream.resume()
        for answer in self._embeddings.values():
            if not answer.done():
                answer.set_exception(CapacityError(GONE))

    def _end_all(self, streams: dict[int, DeltaStream]) -> None:
        now = time.monotonic()
        deltas: list[Delta] = []
        for request_id, stream in tuple(streams.items()):
            ended = _ends(stream, SHUTTING_DOWN if self._is_stopping else GONE)
            deltas.extend(ended)
            for delta in ended:
                stream.push(delta, now)
            self._streams.pop(request_id, None)
        if deltas and self.on_step is not None:
            self.on_step(StepReport(now, tuple(deltas), self.load, self.num_steps))


def _ends(stream: DeltaStream, message: str) -> list[Delta]:
    """An error for every choice that has not ended."""
    finish = Finish(FinishReason.ERROR, message, Fault.ENGINE)
    request = stream.request
    return [Delta(request.request_id, choice, (), finish) for choice in stream.unended]


def _named(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"with exit status {status}"
