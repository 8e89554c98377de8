"""The requests of the last minutes, each with its times: what waterfalls, percentiles and the request table are made of.

Keeps counts and times, never a prompt or an answer. Times of single tokens are kept only while a page is open, and for a while
after; of every other request the meters tell outcome, counts and times when it ends.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.runtime.core.batch import Delta, PrefixHit
from penstock.runtime.engine.client import StepReport
from penstock.service.server.calls.call import Call
from penstock.service.server.http.exchange import ServerExchange
from penstock.service.server.telemetry.meters import Watch

MAX_RECORDS = 400
MAX_TIMES = 2048
"""Token times kept of one request."""


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are on the server's monotonic clock."""

    request_id: int
    call_id: str
    """As the client knows it: the answer's x-request-id."""
    tenant: str
    num_prompt: int
    num_choices: int
    begin_s: float
    """The first byte was read."""
    read_s: float
    """The body was there."""
    arrival_s: float
    """Its tokens were there, and the engine was asked."""
    admitted_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    end_s: float | None = None
    """The last byte was written."""
    num_tokens: int = 0
    num_cached: int = 0
    miss: str = ""
    differs: tuple[int, int, int] | None = None
    outcome: str = ""
    times: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        if self.first_s is None or self.last_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    def observe(self, delta: Delta, now: float) -> None:
        if delta.prefix is not None and delta.choice == 0:
            self._begin(delta.prefix)
        if delta.token_ids:
            if self.first_s is None:
                self.first_s = now
            self.last_s = now
            self.num_tokens += len(delta.token_ids)
            if delta.choice == 0 and len(self.times) < MAX_TIMES:
                self.times.append(now)
        if delta.finish is not None:
            self.outcome = delta.finish.reason.value

    def settle(self, watch: Watch) -> None:
        """What the meters saw of it, who watch every step: some steps may have passed before anybody looked."""
        timeline = watch.timeline
        if watch.prefix is not None:
            self._begin(watch.prefix)
        self.first_s, self.last_s, self.num_tokens = timeline.first_token_s, timeline.last_token_s, timeline.num_tokens
        if timeline.is_over and timeline.outcome is not None:
            self.outcome = timeline.outcome.value

    def _begin(self, prefix: PrefixHit) -> None:
        self.admitted_s = prefix.admitted_s
        self.num_cached = prefix.num_reused
        self.miss, self.differs = prefix.miss, prefix.differs


class RequestLedger:
    """Lives on the server's event loop."""

    def __init__(self) -> None:
        self.open: dict[int, RequestRecord] = {}
        self.ended: deque[RequestRecord] = deque(maxlen=MAX_RECORDS)
        self.calls: dict[int, Call] = {}
        self.is_listening = False
        """Times of single tokens are taken down."""

    def enter(self, call: Call, exchange: ServerExchange) -> None:
        begin_s = exchange.start_s or call.arrival_s
        for request in call.requests:
            self.calls[request.request_id] = call
            self.open[request.request_id] = RequestRecord(
                request_id=request.request_id,
                call_id=exchange.name,
                tenant=request.tenant,
                num_prompt=len(request.prompt),
                num_choices=request.params.n,
                begin_s=begin_s,
                read_s=begin_s if exchange.read_s is None else exchange.read_s,
                arrival_s=call.arrival_s,
            )

    def observe(self, step: StepReport) -> None:
        now = time.monotonic()
        for delta in step.deltas if self.is_listening else ():
            record = self.open.get(delta.request_id)
            if record is not None:
                record.observe(delta, now)

    def leave(self, call: Call, watches: Iterable[Watch], now: float) -> None:
        is_written = all(writer.finish_reason for writer in call.writers)
        found = {watch.request.request_id: watch for watch in watches}
        for request in call.requests:
            self.calls.pop(request.request_id, None)
            record = self.open.pop(request.request_id, None)
            if record is not None:
                if request.request_id in found:
                    record.settle(found[request.request_id])
                record.end_s = now
                record.outcome = record.outcome or ("stop" if is_written else "cancelled")
                self.ended.append(record)

    def find(self, name: str) -> RequestRecord | None:
        """By the engine's number or by the client's id, the latest first."""
        records = [*self.open.values(), *reversed(self.ended)]
        return next((one for one in records if name in (str(one.request_id), one.call_id)), None)
