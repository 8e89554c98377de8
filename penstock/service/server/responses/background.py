"""Responses made while nobody waits: begun, followed, cancelled, and begun anew by the next run of the server.

A response is kept before its client gets its id, so that none is lost; it is answered under the id it was given, so that none
is answered twice.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable

from penstock.errors import CapacityError, PenstockError
from penstock.service.server.calls.call import Call, Failure
from penstock.service.server.front import Front, Prepared
from penstock.service.server.http.faults import ApiError, busy, error_of, error_of_finish
from penstock.service.server.responses.encoder import ResponseEncoder
from penstock.service.server.served import ServedModel

MAX_RUNNING = 256
MAX_LOGS = 256
"""Responses whose events can be followed, those that are over included."""
RETRY_S = 0.25

MakePrepared = Callable[[], Awaitable[tuple[Prepared, ResponseEncoder]]]
FindModel = Callable[[], ServedModel]
OnFailed = Callable[[ApiError], None]
OnOver = Callable[[Call | None], None]
"""Receives the call that was made, once: not where the next run of the server goes on."""


class EventLog:
    """The events of one response, for any number of followers."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_over = False
        self._news = asyncio.Event()

    def add(self, data: bytes) -> None:
        """One or more events, whole."""
        self.events.extend(part + b"\n\n" for part in data.split(b"\n\n") if part)
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """Events with larger sequence numbers, until the last."""
        place = number + 1
        while True:
            news = self._news
            while place < len(self.events):
                yield self.events[place]
                place += 1
            if self.is_over:
                return
            await news.wait()


class BackgroundResponses:
    """Lives on one event loop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._logs: OrderedDict[str, EventLog] = OrderedDict()
        self._gate = asyncio.Semaphore(MAX_RUNNING)
        self._is_stopping = False

    def log_of(self, response_id: str) -> EventLog | None:
        return self._logs.get(response_id)

    def start(
        self, response_id: str, find: FindModel, make: MakePrepared, on_failed: OnFailed, on_over: OnOver
    ) -> EventLog:
        log = self._logs[response_id] = EventLog()
        while len(self._logs) > MAX_LOGS and next(iter(self._logs.values())).is_over:
            self._logs.popitem(last=False)
        task = asyncio.create_task(self._run(find, make, on_failed, on_over, log))
        self._tasks[response_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(response_id, None))
        return log

    async def cancel(self, response_id: str) -> bool:
        """False if it is over, or was never begun here."""
        task = self._tasks.get(response_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait((task,))
        return True

    async def stop(self) -> None:
        """What is not over stays kept as it is, for the next run."""
        self._is_stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, find: FindModel, make: MakePrepared, on_failed: OnFailed, on_over: OnOver, log: EventLog
    ) -> None:
        call: Call | None = None
        try:
            async with self._gate, self._front.having(find()):
                prepared, encoder = await make()
                call = prepared.call
                await self._generate(prepared, encoder, log)
        except ApiError as error:
            on_failed(error)
        except PenstockError as error:
            on_failed(error_of(error))
        finally:
            if not self._is_stopping:
                on_over(call)
            log.end()

    async def _generate(self, prepared: Prepared, encoder: ResponseEncoder, log: EventLog) -> None:
        call = prepared.call
        while not prepared.model.client.is_ready:
            await asyncio.sleep(RETRY_S)
        try:
            with prepared.running():
                log.add(encoder.opening(call))
                while not call.is_over:
                    data = encoder.reporting(await call.news())
                    if data:
                        log.add(data)
                log.add(encoder.closing(call, None))
        except Failure as failure:
            log.add(encoder.failing(error_of_finish(failure.finish)))
        except CapacityError as error:
            log.add(encoder.failing(busy(str(error), 1)))
