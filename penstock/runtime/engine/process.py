"""The engine in its own process: the child's side of the line.

    post thread     reads commands into the engine's inbox; beats; ends the process when the parent is gone
    main thread     makes the machine, then turns the engine's loop and sends one frame a turn

The parent holds the other end of standard input for as long as it lives: reading its end is how an orphan learns of it.
Sockets lie in a folder only this user may enter.
"""

import faulthandler
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import zmq

from penstock.errors import ConfigError, PenstockError
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.machine import Machine
from penstock.runtime.engine.observer import PERIOD_S, BlockFeed, Observer
from penstock.runtime.engine.wire import (
    MAX_FRAME_BYTES,
    Beat,
    BlocksChanged,
    Cancel,
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
    Seen,
    StepReport,
    Stop,
    Submit,
    decode_command,
    encode,
)

LOGGER = logging.getLogger(__name__)
COMMANDS_SOCKET = "commands"
REPORTS_SOCKET = "reports"
BEAT_S = 0.25
MAX_UNREAD_FRAMES = 4096
"""Frames a parent may leave unread before the engine waits for it."""
IDLE_S = 1.0
"""Longest sleep of an idle loop; anything handed over ends it at once."""
WAKE = -1
"""An id that no request has: cancelling it only wakes the loop."""

OnPhase = Callable[[str], None]
"""Called with the name of each phase of the start as it ends."""


def run_engine(make: Callable[[OnPhase], Machine], folder: Path, start_s: float | None = None) -> int:
    """Make a machine and serve it until asked to stop. Returns the exit status; `start_s` is when the first phase began."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    context = zmq.Context()
    reports = _reports_socket(context, folder)
    post = Post(context, folder)
    post.start()
    gc.disable()  # nearly everything made now is kept: collecting it again and again only delays the start
    try:
        machine = make(_phase_reporter(reports, time.monotonic() if start_s is None else start_s))
        gc.freeze()  # later collections need not search all that in the middle of a step
        gc.enable()
        observer = Observer(machine.engine, time.monotonic)
        feed = BlockFeed(machine.engine.scheduler.pool)
        post.served = machine.engine, observer, feed
        reports.send(encode(Ready(machine.facts)))
        _turn(machine, post, observer, feed, reports)
        if machine.close is not None:
            machine.close()
    except PenstockError as error:
        reports.send(encode(Failed(str(error), isinstance(error, ConfigError))))
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        # The parent prints it last, where the operator looks; the traceback stands above it.
        reports.send(encode(Failed(f"{type(error).__name__}: {error}", False)))
        raise
    finally:
        reports.close(linger=500)
    return 0


class Post(threading.Thread):
    """Commands in, beats out."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        super().__init__(name="post", daemon=True)
        self.served: tuple[Engine, Observer, BlockFeed] | None = None
        """Where commands go, once the machine is made."""
        self.errands: SimpleQueue[EmbedPrompts] = SimpleQueue()
        """Work that is not a request: done between steps."""
        self.is_stopping = False
        self._context = context
        self._folder = folder
        path = folder / COMMANDS_SOCKET
        self._commands = context.socket(zmq.PULL)
        self._commands.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._commands.setsockopt(zmq.RCVHWM, 0)
        self._commands.bind(f"ipc://{path}")
        path.chmod(0o600)

    def run(self) -> None:
        beats = _reports_socket(self._context, self._folder)
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        next_beat_s = 0.0
        while True:
            ready = dict(poller.poll(int(BEAT_S * 1000)))
            if sys.stdin.fileno() in ready:
                # Nothing is written there after the setup: end of file means that the parent has ended, without tidying up.
                shutil.rmtree(self._folder, ignore_errors=True)
                os._exit(0)
            if self._commands in ready:
                self._read()
            now = time.monotonic()
            if now >= next_beat_s:
                next_beat_s = now + BEAT_S
                beats.send(encode(self._beat()))

    def _beat(self) -> Beat:
        if self.served is None:
            return Beat(0, False)
        engine, _, _ = self.served
        return Beat(engine.num_loops, engine.has_work)

    def _read(self) -> None:
        while True:
            try:
                command = decode_command(self._commands.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except PenstockError as error:
                LOGGER.warning("%s; it is dropped", error)
                continue
            if self.served is not None:
                self._hand_over(command, *self.served)

    def _hand_over(self, command: object, engine: Engine, observer: Observer, feed: BlockFeed) -> None:
        match command:
            case Submit(request):
                engine.submit(request)
            case Cancel(request_id, choice):
                engine.cancel(request_id, choice)
            case EmbedPrompts():
                self.errands.put(command)
                engine.cancel(WAKE)
            case OrderAdapter(order) | OrderCache(order):
                engine.order(order)
            case LookCommand(seconds):
                observer.look(seconds)
                engine.cancel(WAKE)
            case FollowBlocks():
                feed.follow()
                engine.cancel(WAKE)
            case Stop():
                self.is_stopping = True
                engine.cancel(WAKE)


def _turn(machine: Machine, post: Post, observer: Observer, feed: BlockFeed, reports: "zmq.Socket[bytes]") -> None:
    """The loop. A turn that computed nothing sleeps until something is handed over or comes due."""
    engine = machine.engine
    while not post.is_stopping:
        _run_errands(machine, post, reports)
        idle_s = _show(observer, reports)
        if _step(engine, feed, reports):
            continue
        if not engine.has_work:
            engine.wait(idle_s)
        else:
            wake_s = engine.scheduler.wake_s
            engine.wait(idle_s if wake_s is None else min(max(wake_s - time.monotonic(), 0.0), idle_s))


def _show(observer: Observer, reports: "zmq.Socket[bytes]") -> float:
    """Send a view, if it is time for one; returns how long an idle loop may sleep."""
    view = observer.view()
    if view is not None:
        reports.send(encode(Seen(view)))
    return PERIOD_S if observer.is_watched(time.monotonic()) else IDLE_S


def _step(engine: Engine, feed: BlockFeed, reports: "zmq.Socket[bytes]") -> bool:
    """Turn the engine once and send the results; False if there were none.

    The deltas are dropped here, while they are still in the processor's caches: after the next step they would have to be
    fetched to be freed.
    """
    num_steps = engine.num_steps
    deltas = engine.step()
    news = feed.news()
    if news is not None:
        reports.send(encode(BlocksChanged(*news)))
    answers = () if engine.adapters is None else engine.adapters.answers()
    cached = engine.cache_answers()
    if answers or cached:
        reports.send(encode(Ordered(answers, cached)))
    if not deltas and engine.num_steps == num_steps:
        return False
    scheduler = engine.scheduler
    grammar_state = engine.proposer.grammar_state
    grammars = grammar_state.counts if grammar_state is not None and grammar_state.counts.num_asked else None
    matched = () if grammar_state is None else grammar_state.ended()
    report = StepReport(
        time.monotonic(),
        deltas,
        scheduler.load,
        engine.num_steps,
        scheduler.prompts,
        grammars,
        matched,
        None if engine.adapters is None else engine.adapters.counts,
        None if engine.tiers is None else engine.tiers.counts,
        None if engine.peers is None else engine.peers.counts,
    )
    reports.send(encode(report))
    return True


def _run_errands(machine: Machine, post: Post, reports: "zmq.Socket[bytes]") -> None:
    while True:
        try:
            errand = post.errands.get_nowait()
        except Empty:
            return
        try:
            if machine.embed is None:
                raise ConfigError("this model does not embed")
            answer = Embedded(errand.request_id, machine.embed(errand.prompts))
        except Exception as error:
            answer = Embedded(errand.request_id, (), f"{type(error).__name__}: {error}")
        reports.send(encode(answer))


def _reports_socket(context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_FRAMES)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"ipc://{folder / REPORTS_SOCKET}")
    return socket


def _phase_reporter(reports: "zmq.Socket[bytes]", last_s: float) -> OnPhase:
    def report(name: str) -> None:
        nonlocal last_s
        now = time.monotonic()
        reports.send(encode(Phase(name, now - last_s)))
        last_s = now

    return report
