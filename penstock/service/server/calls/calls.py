"""Answers in parts that are on their way, watched over: those that wait are sent their progress."""

import asyncio
import contextlib
import logging
import time
from typing import Any, NamedTuple

from penstock.service import marks
from penstock.service.edge.memory import needs_trim, trim_memory
from penstock.service.server.calls.call import Call
from penstock.service.server.dialect import Dialect, Progress
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.sse import PING_S

LOGGER = logging.getLogger(__name__)
SWEEP_S = 0.5


class OpenCall(NamedTuple):
    """A call, where its answer goes and how it is worded, and who knows its place in the queue."""

    call: Call
    send: Any
    dialect: Dialect
    admission: Admission


class Calls:
    """Every call whose answer is sent in parts is here while more of it may come."""

    def __init__(self) -> None:
        self._open: dict[Call, OpenCall] = {}
        self._pings: set[asyncio.Task[None]] = set()

    def enter(self, opened: OpenCall) -> None:
        self._open[opened.call] = opened

    def leave(self, call: Call) -> None:
        """Once or more."""
        self._open.pop(call, None)

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if needs_trim():
                asyncio.get_running_loop().run_in_executor(None, trim_memory)
            for opened in tuple(self._open.values()):
                try:
                    self._look_after(opened, time.monotonic())
                except Exception:  # of one call: the others are still watched over
                    LOGGER.exception("a call could not be looked after")

    def _look_after(self, opened: OpenCall, now: float) -> None:
        call = opened.call
        since_s = call.sending_since_s
        patience_s = SWEEP_S if call.reports_progress and call.waiting else PING_S
        if since_s is None and now - call.wrote_s > patience_s:
            self._pings.add(ping := asyncio.create_task(self._ping(opened)))
            ping.add_done_callback(self._pings.discard)

    async def _ping(self, opened: OpenCall) -> None:
        """A task of its own: a client that does not read delays no other."""
        call = opened.call
        call.wrote_s = time.monotonic()
        data = _sign_of_life(opened)
        if not data:
            return
        if call.is_marked:
            data += marks.mark_of(())
        call.sending_since_s = call.wrote_s
        with contextlib.suppress(RuntimeError):  # the answer may end while this waits to be written
            if call in self._open:
                await opened.send({"type": "http.response.body", "body": data, "more_body": True})
        call.sending_since_s = None


def _sign_of_life(opened: OpenCall) -> bytes:
    """How far a call that waits has come, as an event if that was asked for; else something that parsers skip."""
    waiting = opened.call.waiting
    if waiting is None:
        return opened.dialect.ping
    progress = Progress("prefill", percent=round(100 * waiting.num_computed / len(waiting.request.prompt)))
    if not waiting.num_computed:
        position = opened.admission.position(waiting)
        progress = Progress("queued", position, opened.admission.eta_s(position))
    return opened.dialect.progress(progress) if opened.call.reports_progress else opened.dialect.comment(progress)
