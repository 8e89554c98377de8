"""The models of a server, each loaded when somebody asks for it and unloaded when its room is needed or nobody does.

    cold -> loading -> ready -> unloading -> cold
               |         |
               v         v
             failed (tried again after a while, if somebody asks)

One task looks after all of them; a load and an unload are tasks of their own. Whoever acquires a model has it until the
release: it is not unloaded meanwhile. A load that fails is told to those who waited for it, and touches no other model.
"""

import asyncio
import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.errors import CapacityError, EngineError, PenstockError
from penstock.metrics.exposition import DURATION_BUCKETS, Buckets, Counter, Gauge, Metric
from penstock.server.dialect import Progress
from penstock.server.http.faults import NO_RETRY, ApiError, ErrorKind, busy
from penstock.server.pool.memory import promised_bytes, taken_bytes
from penstock.server.pool.policy import can_ever_fit, decide
from penstock.server.pool.resident import Residency, Resident
from penstock.server.served import ServedModel
from penstock.server.text import ModelCard, Text, open_on_thread

LOGGER = logging.getLogger(__name__)
TURN_S = 0.25
"""How often the pool looks around where nothing calls it."""
ROOM_S = 60.0
"""How long a request waits for room before it is refused with Retry-After."""
LOAD_S = 600.0
"""How long a request waits for a load."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a load that failed is tried again; doubled each time."""
MEASURE_S = 1.0
MIB = 2**20
DEPARTURES = {"idle": "nobody has asked for it", "memory": "another needs its room"}
NEXT_PHASE = {"load the model": "make room for the cache"}
"""What an engine does after the part of its start that it has told of."""


class CheckedFiles(NamedTuple):
    """What a look at a model's files tells."""

    card: ModelCard
    num_bytes: int
    """What it is expected to take."""


class PooledModel(NamedTuple):
    """A model that can be loaded: what is served of it, where it stands, and how its files are read, which blocks."""

    served: ServedModel
    resident: Resident
    open_text: Callable[[], Text]
    check: Callable[[], CheckedFiles]
    """Raises PenstockError for files that no engine could load."""


class PoolMeters:
    """Loads and departures of one model."""

    def __init__(self) -> None:
        self.loads = Counter("penstock_model_loads", "Times the model was loaded")
        self.failures = Counter("penstock_model_load_failures", "Loads that failed")
        self.unloads = Counter("penstock_model_evictions", "Times the model was unloaded, by why")
        self.load_s = Buckets("penstock_model_load_seconds", "Seconds a load takes", DURATION_BUCKETS)


class ModelPool:
    """Lives on one event loop: `run` until `stop`."""

    def __init__(self, models: Sequence[PooledModel], budget_bytes: int | None, *, max_waiting: int = 1024) -> None:
        self.models = {one.resident.name: one for one in models}
        self.budget_bytes = budget_bytes
        self.meters = {name: PoolMeters() for name in self.models}
        self._max_waiting = max_waiting
        self._waiters: dict[str, list[asyncio.Future[None]]] = {name: [] for name in self.models}
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._called = asyncio.Event()
        self._is_stopping = False
        self._measured_s = -math.inf
        for one in models:
            one.resident.keep_alive_s = one.resident.default_keep_alive_s
            one.served.client.on_phase = _phase_listener(one.resident)

    @property
    def residents(self) -> list[Resident]:
        return [one.resident for one in self.models.values()]

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(one.num_waiting for one in self.residents)

    @property
    def num_bytes(self) -> int:
        """What all that is in memory takes or may come to take."""
        return sum(one.num_bytes for one in self.residents if one.is_in_memory)

    def metrics(self, name: str) -> list[Metric]:
        """What is counted of one model beside what its requests are."""
        resident = self.models[name].resident
        state = "penstock_model_state", "1 for the state that a model is in"
        states = [Gauge(*state, partial(_is_in, resident, one), (("state", one.value),)) for one in Residency]
        gauges = [
            Gauge(
                "penstock_model_bytes", "Memory that a model takes", lambda: resident.num_bytes * resident.is_in_memory
            ),
            Gauge("penstock_model_requests", "Requests that have the model", lambda: resident.num_uses),
            Gauge("penstock_model_requests_waiting", "Requests that wait for a load", lambda: resident.num_waiting),
        ]
        return [*states, *gauges, *vars(self.meters[name]).values()]

    def progress(self, resident: Resident) -> Progress:
        """Progress of a model that requests wait for."""
        if resident.state is not Residency.LOADING:
            return Progress("room", phase="waiting for memory that other models use")
        spent_s = time.monotonic() - resident.load_start_s
        percent = eta_s = None
        if resident.load_s:
            percent = min(round(100 * spent_s / resident.load_s), 99)
            eta_s = round(max(resident.load_s - spent_s, 0.0), 1)
        return Progress("load", eta_s=eta_s, percent=percent, phase=resident.phase)

    # A request has a model

    async def acquire(self, resident: Resident, timeout_s: float | None = None, *, is_patient: bool = False) -> None:
        """Return once the model is ready; it stays until `release`. Raises the error that its client receives.

        Patient work waits as long as it takes, and is no reason for others to yield.
        """
        if resident.is_open:
            resident.num_uses += 1
            return
        self._check(resident)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[resident.name].append(waiter)
        resident.num_waiting += 1
        resident.num_patient += is_patient
        if resident.wanted_s is None:
            resident.wanted_s = time.monotonic()
        self._called.set()
        try:
            await self._wait(resident, waiter, math.inf if is_patient else timeout_s)
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(resident)  # it was given just when its client left
            raise
        finally:
            self._waiters[resident.name] = [one for one in self._waiters[resident.name] if one is not waiter]
            resident.num_waiting -= 1
            resident.num_patient -= is_patient
            if not resident.num_waiting:
                resident.wanted_s = None

    async def _wait(self, resident: Resident, waiter: "asyncio.Future[None]", timeout_s: float | None) -> None:
        """Room is waited for less long than a load that is under way."""
        start_s = time.monotonic()
        while not waiter.done():
            limit_s = LOAD_S if resident.state is Residency.LOADING else ROOM_S
            left_s = start_s + (limit_s if timeout_s is None else timeout_s) - time.monotonic()
            if left_s <= 0.0:
                raise self._not_yet(resident)
            await asyncio.wait((waiter,), timeout=min(left_s, 1.0))
        waiter.result()

    def release(self, resident: Resident, keep_alive_s: float | None = None) -> None:
        """Let a model go; `keep_alive_s` says how long it stays if nobody else comes, below 0 for ever, None as before."""
        resident.num_uses -= 1
        resident.used_s = time.monotonic()
        if keep_alive_s is not None:
            resident.keep_alive_s = math.inf if keep_alive_s < 0.0 else keep_alive_s
        if not resident.num_uses and (resident.is_yielding or not resident.keep_alive_s or self.num_waiting):
            self._called.set()

    def expire(self, resident: Resident) -> None:
        """Unload a model as soon as no request has it."""
        resident.keep_alive_s = 0.0
        self._called.set()

    def _check(self, resident: Resident) -> None:
        if self._is_stopping:
            raise busy("the server is shutting down; send the request elsewhere", 1, code="shutting_down")
        if not can_ever_fit(resident, self.residents, self.budget_bytes):
            raise self._too_large(resident)
        left_s = resident.retry_s - time.monotonic()
        if resident.state is Residency.FAILED and left_s > 0.0:
            raise _failed(resident, left_s)
        if resident.num_waiting >= self._max_waiting:
            raise busy(f"{resident.num_waiting:,} requests wait for {resident.name!r} to be loaded; try later", 5)

    def _not_yet(self, resident: Resident) -> ApiError:
        if resident.state is Residency.LOADING:
            eta_s = self.progress(resident).eta_s
            message = f"{resident.name!r} is still being loaded; try again in a moment"
            return busy(message, 1 if eta_s is None else max(math.ceil(eta_s), 1), code="model_loading")
        message = f"there is no room for {resident.name!r} now: other models are in use; try later"
        return busy(message, 10, code="no_room_for_model")

    def _too_large(self, resident: Resident) -> ApiError:
        budget = 0 if self.budget_bytes is None else self.budget_bytes
        message = (
            f"{resident.name!r} takes about {resident.num_bytes // MIB:,} MiB; the models of this server may take "
            f"{budget // MIB:,} MiB together, those that never leave included; ask for another"
        )
        return ApiError(ErrorKind.UNAVAILABLE, message, param="model", code="model_does_not_fit", headers=NO_RETRY)

    # The pool looks after its models

    async def run(self) -> None:
        """Until `stop`."""
        while not self._is_stopping:
            self._called.clear()
            try:
                self._turn(time.monotonic())
            except Exception:
                LOGGER.exception("the pool of models stumbled")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._called.wait()

    async def stop(self) -> None:
        """End all engines; whoever waits for a model is told."""
        self._is_stopping = True
        self._called.set()
        for one in self.residents:
            self._refuse(one, lambda: busy("the server is shutting down; send the request elsewhere", 1))
        await asyncio.gather(*(one.served.client.stop() for one in self.models.values()))
        await asyncio.gather(*self._supervisors.values(), *self._tasks, return_exceptions=True)

    def _turn(self, now: float) -> None:
        if self._is_stopping:
            return
        self._measure(now)
        decision = decide(self.residents, self.budget_bytes, now)
        for resident, reason in decision.unload:
            resident.state = Residency.UNLOADING
            self.meters[resident.name].unloads.add(1, (("reason", reason),))
            LOGGER.info("%s is unloaded: %s", resident.name, DEPARTURES[reason])
            self._start(self._unload(self.models[resident.name]))
        for one in self.residents:
            one.is_yielding = one in decision.yielding
            if one.is_open:
                self._hand_over(one)
        for one in self.residents:
            if one.wants_check(now):
                self._start(self.check(self.models[one.name]))
        for one in decision.load:
            one.state, one.load_start_s, one.phase = Residency.LOADING, now, "start a process"
            self._start(self._load(self.models[one.name]))

    def _measure(self, now: float) -> None:
        """What is in memory may have grown beyond what it promised."""
        if now < self._measured_s + MEASURE_S:
            return
        self._measured_s = now
        for one in self.models.values():
            if one.resident.state is Residency.READY:
                one.resident.measured_bytes = max(one.resident.num_bytes, taken_bytes(one.served.client))

    def _hand_over(self, resident: Resident) -> None:
        """Those who wait have it now, before anything else is decided about it."""
        for waiter in self._waiters[resident.name]:
            if not waiter.done():
                resident.num_uses += 1
                waiter.set_result(None)

    def _refuse(self, resident: Resident, error: Callable[[], ApiError]) -> None:
        for waiter in self._waiters[resident.name]:
            if not waiter.done():
                waiter.set_exception(error())

    # One model comes and goes

    async def check(self, pooled: PooledModel) -> None:
        """Look at the files, so that nobody leaves for a model that could not be loaded, and it is known before it ever was."""
        resident = pooled.resident
        resident.is_checking = True
        try:
            found = await asyncio.to_thread(pooled.check)
            pooled.served.card, resident.estimated_bytes, resident.is_checked = *found, True
            self._called.set()
            if not can_ever_fit(resident, self.residents, self.budget_bytes):
                self._refuse(resident, lambda: self._too_large(resident))
                if resident.is_pinned:
                    raise CapacityError(self._too_large(resident).message)
        except Exception as error:
            self.meters[resident.name].failures.add()
            self._fail(resident, error)
        finally:
            resident.is_checking = False

    async def _load(self, pooled: PooledModel) -> None:
        resident, meters = pooled.resident, self.meters[pooled.resident.name]
        try:
            await self._bring_in(pooled)
        except Exception as error:
            meters.failures.add()
            await self._take_out(pooled)
            if not self._is_stopping:
                self._fail(resident, error)
            return
        now = time.monotonic()
        resident.state, resident.used_s, resident.num_failures = Residency.READY, now, 0
        resident.load_s = now - resident.load_start_s
        resident.keep_alive_s = resident.default_keep_alive_s
        meters.loads.add()
        meters.load_s.add(resident.load_s)
        LOGGER.info("%s is loaded in %.1f s, %s MiB", resident.name, resident.load_s, f"{resident.num_bytes // MIB:,}")
        self._supervisors[resident.name].add_done_callback(lambda _: self._lost(pooled))
        self._hand_over(resident)
        self._called.set()

    async def _bring_in(self, pooled: PooledModel) -> None:
        """Weights and words at the same time; whatever fails first is what is told."""
        client, resident = pooled.served.client, pooled.resident
        client.reopen()
        supervisor = self._supervisors[resident.name] = asyncio.create_task(client.run())
        words = open_on_thread(pooled.open_text if not pooled.served.is_open else lambda: pooled.served.text)
        ready = asyncio.ensure_future(client.ready.wait())
        try:
            for awaited in (words, ready):
                await asyncio.wait((supervisor, awaited), return_when=asyncio.FIRST_COMPLETED)
                if supervisor.done():
                    supervisor.result()
                    raise EngineError("its engine ended before it was ready")
                awaited.result()
        finally:
            ready.cancel()
        pooled.served.text = words.result()  # kept from now on: reading them takes longer than the weights
        resident.measured_bytes = promised_bytes(client)
        if not can_ever_fit(resident, self.residents, self.budget_bytes):
            raise CapacityError(self._too_large(resident).message)

    async def _take_out(self, pooled: PooledModel) -> None:
        await pooled.served.client.stop()
        supervisor = self._supervisors.pop(pooled.resident.name, None)
        if supervisor is not None:
            await asyncio.gather(supervisor, return_exceptions=True)

    async def _unload(self, pooled: PooledModel) -> None:
        await self._take_out(pooled)
        pooled.resident.state = Residency.COLD
        self._called.set()

    def _lost(self, pooled: PooledModel) -> None:
        """The engine of a loaded model could not be kept alive; requests it had were told by its client."""
        if pooled.resident.state is Residency.READY and not self._is_stopping:
            supervisor = self._supervisors.pop(pooled.resident.name)
            self._fail(pooled.resident, supervisor.exception() or EngineError("its engine ended"))

    def _fail(self, resident: Resident, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            LOGGER.error("%s could not be loaded", resident.name, exc_info=error)
        resident.num_failures += 1
        resident.is_checked = False
        pause_s = min(FIRST_PAUSE_S * 2 ** (resident.num_failures - 1), LONGEST_PAUSE_S)
        resident.state, resident.retry_s = Residency.FAILED, time.monotonic() + pause_s
        resident.reason = _without_folders(str(error)) if isinstance(error, PenstockError) else "the fault is ours"
        LOGGER.error("%s cannot be served: %s; tried again in %.0f s if asked for", resident.name, error, pause_s)
        self._refuse(resident, lambda: _failed(resident, pause_s))
        self._called.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_in(resident: Resident, state: Residency) -> float:
    return float(resident.state is state)


def _phase_listener(resident: Resident) -> Callable[[str, float], None]:
    def on_phase(name: str, seconds: float) -> None:
        resident.phase = NEXT_PHASE.get(name, name)

    return on_phase


def _failed(resident: Resident, retry_after_s: float) -> ApiError:
    message = f"{resident.name!r} could not be loaded: {resident.reason}"
    return busy(message, max(math.ceil(retry_after_s), 1), code="model_load_failed")


def _without_folders(text: str) -> str:
    """Clients see names of files, not their folders."""
    return re.sub(r"(?<![\w:/])/(?:[^\s/:;,']+/)+", "", text)
