"""The models of a server, each loaded when somebody asks for it and unloaded when its room is needed or nobody does.

    cold -> loading -> ready -> unloading -> cold
               |         |          |
               v         v          v
             failed (tried again after a while, if somebody asks)

One task looks after all of them; a load and an unload are tasks of their own. Whoever acquires a model has it until the
release: it is not unloaded meanwhile. A load that fails is told to those who waited for it, and touches no other model.
A model that is not what it was takes no new requests, is unloaded, and is verified before it serves again.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from penstock.errors import CapacityError, ModelFileError, PenstockError
from penstock.service.server.dialect import Progress
from penstock.service.server.http.faults import ApiError, shutting_down
from penstock.service.server.pool.loads import ModelLoads, PooledModel, taken_bytes
from penstock.service.server.pool.policy import SwitchDebts, can_ever_fit, decide
from penstock.service.server.pool.refusals import MIB, crowded, load_failed, not_yet, reason_of, too_large
from penstock.service.server.pool.resident import PoolMeters, Residency, Resident
from penstock.service.server.threads import on_daemon_thread

LOGGER = logging.getLogger(__name__)
TOO_LARGE = "%s is going to be refused: it takes about %s, the models of this server %s together; raise --models-memory"
TURN_S = 0.25
"""How often the pool looks around where nothing calls it."""
ROOM_S = 60.0
"""How long a request waits for room before it is refused with Retry-After."""
LOAD_S = 600.0
"""How long a request waits for a load."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a load that failed is tried again; doubled each time."""
MEASURE_S = 1.0
DEPARTURES = {
    "idle": "nobody has asked for it",
    "memory": "another needs its room",
    "damaged": "it is not what it was",
}
NEXT_PHASE = {"load the model": "make room for the cache"}
"""What an engine does after the part of its start that it has told of."""


class ModelPool:
    """Lives on one event loop: `run` until `stop`."""

    def __init__(self, models: Sequence[PooledModel], budget_bytes: int | None, *, max_waiting: int = 1024) -> None:
        self.models = {one.resident.name: one for one in models}
        self.budget_bytes = budget_bytes
        self.meters = {one.resident.name: PoolMeters(one.resident) for one in models}
        """What is counted of each beside what its requests are."""
        self._max_waiting = max_waiting
        self._waiters: dict[str, list[asyncio.Future[None]]] = {name: [] for name in self.models}
        self._loads = ModelLoads()
        self._debts = SwitchDebts()
        self._tasks: set[asyncio.Task[None]] = set()
        self._called = asyncio.Event()
        self._is_stopping = False
        self._measured_s = -math.inf
        for one in models:
            one.resident.keep_alive_s = one.resident.default_keep_alive_s
            one.served.client.on_phase = partial(_note_phase, one.resident)

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

    async def acquire(
        self, resident: Resident, timeout_s: float | None = None, *, is_patient: bool = False, tenant: str = ""
    ) -> None:
        """Return once the model is ready; it stays until `release`. Raises the error that its client receives.

        Patient work waits as long as it takes, and is no reason for others to yield.
        """
        if resident.is_open:
            resident.num_uses += 1
            resident.used_by = tenant
            return
        self._check(resident)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[resident.name].append(waiter)
        resident.num_waiting += 1
        resident.num_patient += is_patient
        if resident.wanted_s is None:
            resident.wanted_s, resident.wanted_by = time.monotonic(), tenant
        self._called.set()
        try:
            await self._wait(resident, waiter, math.inf if is_patient else timeout_s)
            resident.used_by = tenant
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
                raise not_yet(resident, self.progress(resident).eta_s)
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
            raise shutting_down()
        if not can_ever_fit(resident, self.residents, self.budget_bytes):
            raise too_large(resident, self.budget_bytes)
        left_s = resident.retry_s - time.monotonic()
        if resident.state is Residency.FAILED and left_s > 0.0:
            raise load_failed(resident, left_s)
        if resident.state is Residency.READY and resident.fault:
            raise load_failed(resident, FIRST_PAUSE_S)
        if resident.num_waiting >= self._max_waiting:
            raise crowded(resident)

    # The pool looks after its models

    async def run(self) -> None:
        """Until `stop`."""
        while not self._is_stopping:
            self._called.clear()
            try:
                self._turn(time.monotonic())
            except Exception:
                LOGGER.exception("the pool of models failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._called.wait()

    async def stop(self) -> None:
        """End all engines; whoever waits for a model is told."""
        self._is_stopping = True
        self._called.set()
        for one in self.residents:
            self._refuse(one, shutting_down)
        await asyncio.gather(*(one.served.client.stop() for one in self.models.values()))
        await asyncio.gather(*self._loads.supervisors.values(), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _turn(self, now: float) -> None:
        if self._is_stopping:
            return
        self._measure(now)
        decision = decide(self.residents, self.budget_bytes, now, self._debts)
        for resident, reason in decision.unload:
            resident.state = Residency.UNLOADING
            resident.evicted_for = _first_wanted(self.residents) if reason == "memory" else None
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
        """Hand the model to its waiters, before anything else is decided about it."""
        for waiter in self._waiters[resident.name]:
            if not waiter.done():
                resident.num_uses += 1
                waiter.set_result(None)

    def _refuse(self, resident: Resident, error: Callable[[], ApiError]) -> None:
        """All waiters are dismissed, also before they have noticed: what failed is not tried again for them."""
        resident.wanted_s = None
        for waiter in self._waiters[resident.name]:
            if not waiter.done():
                waiter.set_exception(error())

    # One model comes and goes

    async def check(self, pooled: PooledModel) -> None:
        """Look at the files, so that nobody leaves for a model that could not be loaded, and it is known before it ever was.

        One look at a time: a request's and that of the server's start are the same, and count as one failure.
        """
        resident = pooled.resident
        if resident.is_checking:
            return
        resident.is_checking = True
        try:
            await self._loads.check(pooled)
            resident.is_checked = True
            self._called.set()
            if not can_ever_fit(resident, self.residents, self.budget_bytes):
                self._refuse(resident, lambda: too_large(resident, self.budget_bytes))
                if resident.is_pinned:
                    raise CapacityError(too_large(resident, self.budget_bytes).message)
                taken, allowed = (f"{size // MIB:,} MiB" for size in (resident.num_bytes, self.budget_bytes or 0))
                LOGGER.warning(TOO_LARGE, resident.name, taken, allowed)
        except Exception as error:
            self.meters[resident.name].failures.add()
            self._fail(resident, error)
        finally:
            resident.is_checking = False

    async def _load(self, pooled: PooledModel) -> None:
        resident, meters = pooled.resident, self.meters[pooled.resident.name]
        try:
            await self._loads.bring_in(pooled)
            if not can_ever_fit(resident, self.residents, self.budget_bytes):
                raise CapacityError(too_large(resident, self.budget_bytes).message)
            await self._verify_answer(pooled)
        except Exception as error:
            meters.failures.add()
            await self._loads.take_out(pooled)
            if not self._is_stopping:
                self._fail(resident, error)
            return
        now = time.monotonic()
        resident.state, resident.used_s, resident.num_failures, resident.fault = Residency.READY, now, 0, ""
        resident.load_s = now - resident.load_start_s
        self._charge(resident, now)
        resident.keep_alive_s = resident.default_keep_alive_s
        meters.loads.add()
        meters.load_s.add(resident.load_s)
        LOGGER.info("%s is loaded in %.1f s, %s MiB", resident.name, resident.load_s, f"{resident.num_bytes // MIB:,}")
        self._loads.on_end(pooled, lambda error: self._lost(resident, error))
        self._hand_over(resident)
        self._called.set()
        if not resident.is_verified:
            self._start(self._verify_files(pooled))

    def _charge(self, resident: Resident, now: float) -> None:
        """Whose doing the load was: the key that sent the model away, or the one that asked for it."""
        tenant = resident.wanted_by if resident.evicted_for is None else resident.evicted_for
        self._debts.charge(tenant, resident.load_s or 0.0, now)
        resident.evicted_for = None

    async def _unload(self, pooled: PooledModel) -> None:
        resident = pooled.resident
        await self._loads.take_out(pooled)
        if resident.fault:
            self._fail(resident, ModelFileError(resident.fault))
        else:
            resident.state = Residency.COLD
        self._called.set()

    def _lost(self, resident: Resident, error: BaseException) -> None:
        """The engine of a loaded model could not be kept alive; requests it had were told by its client."""
        if resident.state is Residency.READY and not self._is_stopping:
            self._fail(resident, error)

    def _fail(self, resident: Resident, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            LOGGER.error("%s could not be loaded", resident.name, exc_info=error)
        resident.num_failures += 1
        resident.is_checked = False
        pause_s = min(FIRST_PAUSE_S * 2 ** (resident.num_failures - 1), LONGEST_PAUSE_S)
        resident.state, resident.retry_s = Residency.FAILED, time.monotonic() + pause_s
        resident.reason = reason_of(error)
        LOGGER.error("%s cannot be served: %s; tried again in %.0f s if asked for", resident.name, error, pause_s)
        self._refuse(resident, lambda: load_failed(resident, pause_s))
        self._called.set()

    # One model is verified

    async def _verify_answer(self, pooled: PooledModel) -> None:
        """Before any request has it, and only once: another request beside it may change the answer by rounding."""
        resident, verifier = pooled.resident, pooled.verifier
        if verifier is None or resident.is_verified:
            return
        fault = await verifier.change(pooled.served)
        if fault:
            resident.fault = fault
            raise ModelFileError(fault)

    async def _verify_files(self, pooled: PooledModel) -> None:
        """While the model serves. Of one whose files are damaged the requests in progress end, and no other comes."""
        resident, verifier = pooled.resident, pooled.verifier
        if verifier is None:
            return
        try:
            fault = await on_daemon_thread(verifier.damage, "verify")
        except Exception:
            LOGGER.exception("the files of %s could not be verified", resident.name)
            return
        resident.is_verified = not fault
        if fault:
            LOGGER.error("%s takes no more requests: %s", resident.name, fault)
            resident.fault = resident.reason = fault
            resident.is_checked = False
            self._refuse(resident, lambda: load_failed(resident, FIRST_PAUSE_S))
            self._called.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _first_wanted(residents: Sequence[Resident]) -> str | None:
    """The key that has waited longest for a model."""
    waiting = [one for one in residents if one.wanted_s is not None and not one.is_in_memory]
    return min(waiting, key=lambda one: one.wanted_s or 0.0).wanted_by if waiting else None


def _note_phase(resident: Resident, name: str, seconds: float) -> None:
    resident.phase = NEXT_PHASE.get(name, name)
