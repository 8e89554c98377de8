"""The calls in progress, watched over: readers that stall are cut off, those that wait are told how far they are."""

import asyncio
import contextlib
import time
from typing import Any

from penstock.server.http import sse
from penstock.server.http.admission import Admission
from penstock.server.http.call import Call

PING_S = 10.0
"""A stream on which nothing was written for so long gets a sign of life."""
SWEEP_S = 0.5


class Calls:
    """Every call is here from its first news to its last byte."""

    def __init__(self, admission: Admission, stall_s: float) -> None:
        self._admission = admission
        self._stall_s = stall_s
        self._sends: dict[Call, Any] = {}
        self._pings: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sends)

    def enter(self, call: Call, send: Any) -> None:
        self._sends[call] = send

    def leave(self, call: Call) -> None:
        del self._sends[call]

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for call, send in tuple(self._sends.items()):
                since_s = call.sending_since_s
                if since_s is not None and now - since_s > self._stall_s:
                    call.cancel()
                    call.abort()
                    continue
                patience_s = SWEEP_S if call.tells_progress and call.waiting else PING_S
                if since_s is None and call.is_streaming and now - call.wrote_s > patience_s:
                    self._pings.add(ping := asyncio.create_task(self._ping(call, send)))
                    ping.add_done_callback(self._pings.discard)

    async def _ping(self, call: Call, send: Any) -> None:
        """A task of its own: a client that does not read holds up nobody else's."""
        call.wrote_s = call.sending_since_s = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the answer may end while this waits to be written
            if call.is_streaming:
                await send({"type": "http.response.body", "body": self._comfort(call), "more_body": True})
        call.sending_since_s = None

    def _comfort(self, call: Call) -> bytes:
        """How far a call that waits has come: an event if it was asked for, else a comment that parsers skip."""
        waiting = call.waiting
        if waiting is None:
            return sse.PING
        num_prompt = len(waiting.request.prompt)
        progress: dict[str, Any] = {"stage": "prefill", "percent": round(100 * waiting.num_computed / num_prompt)}
        if not waiting.num_computed:
            position = self._admission.position(waiting)
            progress = {"stage": "queued", "position": position, "eta_s": self._admission.eta_s(position)}
        if call.tells_progress:
            return b"event: progress\n" + sse.event(progress)
        return sse.comment(", ".join(f"{name} {value}" for name, value in progress.items()))
