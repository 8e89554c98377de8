"""What is going on, for open pages: one producer for all readers, working only while there are some.

Views come from the engine while it is being looked at; times come from the ledger; verdicts from the doctor's rules. A reader
with a key sees its own requests, one with an admin key, or where there are no keys, all of them.
"""

import asyncio
import base64
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from penstock.metrics.exposition import exposition
from penstock.metrics.page import parse_page
from penstock.metrics.summary import quantile
from penstock.runtime.engine.client import NO_PREFIX, EngineClient, EngineView, StepView
from penstock.service.server.http.admission import Admission
from penstock.service.server.telemetry.meters import Meters
from penstock.service.server.ui.ledger import RequestLedger, RequestRecord
from penstock.service.server.ui.utilisation import (
    RequestMix,
    capacity_per_s,
    frontier,
    full_batch,
    queue_of,
    step_times,
)
from penstock.tools.doctor.rule import diagnose
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import Look, Signs, signs_of

TICK_S = 0.4
LOOK_S = 3.0
"""How long one look lasts; it is asked for again while a page reads."""
LINGER_S = 300.0
"""How long requests are written down after the last reader has left."""
WINDOW_S = 60.0
RATE_S = 10.0
DOCTOR_S = 5.0
EXTRAPOLATION = 4
"""The frontier ends at batches this many times as large as any that was seen."""
MAX_STEPS = 2000
MAX_READERS = 64
MAX_HOLDERS = 16
"""Sequences whose block tables are sent; of any one block `block` tells."""


SUMMARY = (
    *("request_id", "call_id", "tenant", "num_prompt", "num_cached", "num_tokens", "num_choices"),
    *("ttft_s", "tpot_s", "outcome", "miss", "differs"),
)


class LiveView:
    """Lives on the server's event loop."""

    def __init__(self, client: EngineClient, meters: Meters, admission: Admission) -> None:
        self.ledger = RequestLedger()
        self.steps: deque[StepView] = deque(maxlen=MAX_STEPS)
        self.view: EngineView | None = None
        self.ticked = asyncio.Event()
        self.num_readers = 0
        self._client = client
        self._meters = meters
        self._admission = admission
        self._num_steps = 0
        """Ever seen: a reader's place among them."""
        self._counts: deque[tuple[float, ...]] = deque()
        self._findings: list[dict[str, Any]] = []
        self._looks: deque[tuple[float, Look]] = deque(maxlen=2)
        self._doctor_s = 0.0
        self._producer: asyncio.Task[None] | None = None
        self._left_s = 0.0
        self._start_s = time.monotonic()
        client.on_view = self._see

    # Readers

    def watch(self) -> None:
        """A reader has come: begin to produce."""
        self.num_readers += 1
        self.ledger.is_listening = True
        if self._producer is None or self._producer.done():
            self._producer = asyncio.create_task(self._produce())

    def leave(self) -> None:
        self.num_readers -= 1
        self._left_s = time.monotonic()

    async def _produce(self) -> None:
        while self.num_readers or time.monotonic() - self._left_s < LINGER_S:
            if self.num_readers:
                self._client.look(LOOK_S)
                self._count()
                ticked, self.ticked = self.ticked, asyncio.Event()
                ticked.set()
            await asyncio.sleep(TICK_S)
        self.ledger.is_listening = False
        self.view = None

    def _see(self, view: EngineView) -> None:
        self.view = view
        self.steps.extend(view.steps)
        self._num_steps += len(view.steps)

    def _count(self) -> None:
        now = time.monotonic()
        meters = self._meters
        totals = (meters.prompt_tokens, meters.cached_tokens, meters.output_tokens)
        self._counts.append((now, *(metric.total for metric in totals)))
        while self._counts[0][0] < now - RATE_S:
            self._counts.popleft()
        if now - self._doctor_s >= DOCTOR_S:
            self._doctor_s = now
            self._diagnose(now)

    def _diagnose(self, now: float) -> None:
        """The doctor's rules over our own page of metrics, now and some seconds ago."""
        page = parse_page(exposition(self._meters.metrics, {}))
        self._looks.append((now, Look({"/metrics": 200.0, "/health": 200.0, "/readyz": 200.0}, {}, page)))
        if len(self._looks) < 2:
            return
        (before_s, before), (after_s, after) = self._looks
        signs: Signs = signs_of(before, after, max(after_s - before_s, 1e-3))
        self._findings = [
            asdict(one) | {"layer": one.layer.name, "layer_name": one.layer.value}
            for one in diagnose(signs, RULES).findings
        ]

    # What readers are told

    def snapshot(self, tenant: str | None, since: int) -> tuple[dict[str, Any], int]:
        """Everything a page draws, with the steps after number `since`; and the number of the last of them.

        `tenant` None sees all; another sees its own requests, and of the rest only sums.
        """
        now = time.monotonic()
        load = self._client.load
        fresh = min(self._num_steps - since, len(self.steps))
        steps = list(self.steps)[len(self.steps) - fresh :] if fresh > 0 else []
        body = {
            "time_s": now,
            "is_ready": self._client.is_ready,
            "num_restarts": self._client.num_restarts,
            "load": load._asdict(),
            "num_open": self._admission.num_open,
            "num_refused": self._admission.num_refused,
            "rates": self._rates(),
            "latency": self._latency(tenant, now),
            "queue": self._queue(now),
            "misses": self._misses(tenant),
            "steps": [tuple(step)[:7] for step in steps],
            "requests": self._requests(tenant, now),
            "ended": [summary(one) for one in self._ended(tenant)[:40]],
            "samples": self._samples(tenant, now),
            "findings": self._findings,
            "kv": self._pool(tenant),
            "tiers": None if self._client.tiers is None else self._client.tiers._asdict(),
        }
        return body, self._num_steps

    def _rates(self) -> dict[str, float]:
        names = ("prompt_per_s", "cached_per_s", "output_per_s")
        if len(self._counts) < 2:
            return dict.fromkeys(names, 0.0) | {"window_s": RATE_S}
        first, last = self._counts[0], self._counts[-1]
        seconds = max(last[0] - first[0], 1e-3)
        rates = {name: (after - before) / seconds for name, before, after in zip(names, first[1:], last[1:])}
        return rates | {"window_s": seconds}

    def _ended(self, tenant: str | None) -> list[RequestRecord]:
        return [one for one in reversed(self.ledger.ended) if tenant is None or one.tenant == tenant]

    def _latency(self, tenant: str | None, now: float) -> dict[str, Any]:
        recent = [one for one in self._ended(tenant) if now - (one.end_s or now) < WINDOW_S]
        running = [one for one in self.ledger.open.values() if tenant is None or one.tenant == tenant]
        ttft = sorted(one.ttft_s for one in (*recent, *running) if one.ttft_s is not None)
        tpot = sorted(one.tpot_s for one in (*recent, *running) if one.tpot_s is not None)
        queue = [one.admitted_s - one.arrival_s for one in recent if one.admitted_s is not None]
        e2e = [one.last_s - one.arrival_s for one in recent if one.last_s is not None]
        return {
            "window_s": WINDOW_S,
            "num_requests": len(recent),
            "ttft": _spread(ttft),
            "tpot": _spread(tpot),
            "mean_queue_s": sum(queue) / len(queue) if queue else None,
            "mean_e2e_s": sum(e2e) / len(e2e) if e2e else None,
        }

    def _queue(self, now: float) -> dict[str, Any]:
        """Utilisation and Little's law, of everybody's requests, all of one window."""
        found = queue_of(self.ledger, max(now - WINDOW_S, self._start_s), now)
        capacity, points = self._capacity(found.ended)
        return {
            "window_s": found.window_s,
            "arrivals_per_s": found.arrivals_per_s,
            "ended_per_s": len(found.ended) / found.window_s,
            "mean_time_s": found.mean_time_s,
            "mean_inside": found.mean_inside,
            "capacity_per_s": capacity,
            "rho": found.arrivals_per_s / capacity if capacity else None,
            "frontier": points,
        }

    def _capacity(self, ended: list[RequestRecord]) -> tuple[float | None, list[tuple[float, ...]]]:
        """Requests a second that full batches would carry, and what batches of fewer sequences come to."""
        facts, times = self._client.facts, step_times(tuple(self.steps))
        if facts is None or times is None or not ended:
            return None, []
        count = len(ended)
        mix = RequestMix(
            num_computed=sum(one.num_prompt - one.num_cached for one in ended) / count,
            num_tokens=sum(one.num_tokens for one in ended) / count,
            num_context=sum(one.num_prompt + one.num_tokens for one in ended) / count,
        )
        size = full_batch(mix, facts.max_sequences, facts.num_cached_tokens)
        seen = max(step.num_decoding for step in self.steps)
        points = frontier(times, mix, min(size, EXTRAPOLATION * seen))
        return capacity_per_s(times, mix, size), [tuple(one) for one in points]

    def _misses(self, tenant: str | None) -> list[tuple[str, int, int]]:
        """(why, requests, prompt tokens computed for it) of requests that ended, what cost most first."""
        found: dict[str, list[int]] = {}
        for one in self._ended(tenant):
            if one.miss:
                sums = found.setdefault(one.miss, [0, 0])
                sums[0] += 1
                sums[1] += one.num_prompt - one.num_cached
        rows = [(why, num_requests, num_tokens) for why, (num_requests, num_tokens) in found.items()]
        return sorted(rows, key=lambda row: -row[2])[:8]

    def _samples(self, tenant: str | None, now: float) -> list[tuple[float, float, float]]:
        """(seconds ago, TTFT, TPOT) of requests that ended: what heatmaps count."""
        return [
            (now - one.end_s, one.ttft_s, one.tpot_s or 0.0)
            for one in self._ended(tenant)
            if one.end_s is not None and one.ttft_s is not None
        ]

    def _requests(self, tenant: str | None, now: float) -> list[dict[str, Any]]:
        """Requests in progress: the ledger's record of each, with its state as the engine last told it."""
        states = {} if self.view is None else {one.request_id: one for one in self.view.sequences if one.choice == 0}
        found = []
        for record in self.ledger.open.values():
            if tenant is not None and record.tenant != tenant:
                continue
            state = states.get(record.request_id)
            place = -1 if state is None else state.place
            eta_s = self._admission.eta_s(place) if place >= 0 else None
            found.append(
                summary(record)
                | {
                    "phase": _phase(record, place),
                    "place": place,
                    "eta_s": eta_s,
                    "age_s": now - record.arrival_s,
                    "prefill_fraction": 1.0 if state is None else state.num_computed / max(state.num_prompt, 1),
                    "num_blocks": None if state is None else len(state.blocks),
                }
            )
        return found[:500]

    def _pool(self, tenant: str | None) -> dict[str, Any] | None:
        view = self.view
        if view is None:
            return None
        pool = view.pool
        holders = [
            (one.request_id, one.blocks)
            for one in view.sequences
            if one.blocks and (tenant is None or self._is_of(one.request_id, tenant))
        ][:MAX_HOLDERS]
        return {
            "num_blocks": len(pool.states),
            "states": base64.b64encode(pool.states).decode(),
            "num_evictions": pool.num_evictions,
            "holders": holders,
            "prefixes": [one._asdict() for one in pool.prefixes] if tenant is None else [],
            "view_s": view.cost_s,
        }

    def block(self, number: int, tenant: str | None) -> dict[str, Any] | None:
        """Who holds a block, and which of the largest prefixes it belongs to; None if there is no such block."""
        view = self.view
        if view is None or not 0 <= number < len(view.pool.states):
            return None
        holders = [one.request_id for one in view.sequences if number in one.blocks]
        records = [self.ledger.open[one] for one in dict.fromkeys(holders) if one in self.ledger.open]
        place = view.pool.prefix_of[number]
        return {
            "block": number,
            "state": view.pool.states[number],
            "requests": [
                summary(one) | {"phase": _phase(one, -1)} for one in records if tenant is None or one.tenant == tenant
            ],
            "prefix": view.pool.prefixes[place]._asdict() if place != NO_PREFIX and tenant is None else None,
        }

    def _is_of(self, request_id: int, tenant: str) -> bool:
        record = self.ledger.open.get(request_id)
        return record is not None and record.tenant == tenant


def _phase(record: RequestRecord, place: int) -> str:
    if record.first_s is not None:
        return "decode"
    return "queued" if place >= 0 or record.admitted_s is None else "prefill"


def _spread(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p90": None, "p99": None}
    return {f"p{share}": quantile(values, share / 100) for share in (50, 90, 99)}


def summary(record: RequestRecord) -> dict[str, Any]:
    """One line of a table."""
    return {name: getattr(record, name) for name in SUMMARY}
