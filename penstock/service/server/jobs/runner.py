"""Works on batches: checks them, answers their lines, writes their files, and takes up again what an earlier run left.

    validating -> in_progress -> finalizing -> completed
         |             |  \\-> cancelling -> cancelled
         |             \\--> expired
         \\-> failed

Every answer is a row before it counts, and a file exists before the batch says so: stopping at any moment loses no answer and
repeats none that was kept.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from penstock.errors import CapacityError, PenstockError, RequestError, StoreError
from penstock.service.server.calls.call import Failure
from penstock.service.server.calls.generation import Caller
from penstock.service.server.http.faults import ApiError, ErrorKind, error_of, error_of_finish, failed
from penstock.service.server.jobs.bills import bill_of, last_bill
from penstock.service.server.jobs.endpoints import ENDPOINTS, LineAnswer, checked_body
from penstock.service.server.jobs.lines import (
    BatchLine,
    answer_line,
    check_lines,
    expired_line,
    failed_line,
    line_bound,
    lines_of,
    read_line,
)
from penstock.service.server.jobs.service import Jobs
from penstock.service.server.responses.routes import Responses
from penstock.service.store import jobs as tables
from penstock.service.store.bills import AccountRow, account_of, add_bill
from penstock.service.store.database import Transaction, reading, writing
from penstock.service.store.jobs import BatchRow, FileRow, LineUsage

LOGGER = logging.getLogger(__name__)

MAX_TRIES = 5
"""Of a line that fails through no fault of its own."""
RETRY_S = 0.5
STORE_RETRY_S = 10.0
"""How long a batch waits for room on the disk before it tries again."""
WRITE_LINES = 500
"""Answers that are read at a time when a file is written."""
SEQUENCES = 256
"""Sequences that an engine can run, where none has told yet."""
OVERBOOKED = 2
"""Lines in flight for every sequence the engine can run, so that it never waits for the next."""


class BatchRunner:
    """Lives on one event loop; one task a batch."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._payers: dict[str, AccountRow] = {}
        """Who pays for a batch, where a gateway does."""
        self._gate: asyncio.Semaphore | None = None
        self._read = partial(reading, jobs.storage.database)
        self._write = partial(writing, jobs.storage.database)

    async def resume(self) -> None:
        """Take up what an earlier run left, once an engine is there."""
        try:
            await asyncio.to_thread(self.jobs.tidy)
        except (OSError, StoreError) as error:  # a crowd at the door takes every descriptor: the next start looks again
            LOGGER.warning("files that nobody needs were not looked for: %s", error)
        for row in await self._read(tables.open_batches):
            if row.status == "cancelling":
                self._cancelled.add(row.id)
            self.take(row)

    def take(self, row: BatchRow) -> None:
        self.jobs.open_batches[row.id] = row
        task = asyncio.create_task(self._work(row))
        self._tasks[row.id] = task
        task.add_done_callback(lambda _: self._done(row.id))

    async def cancel(self, batch_id: str) -> None:
        """Lines in flight are given up; what is answered stays answered."""
        self._cancelled.add(batch_id)
        await self._set(batch_id, "cancelling", {"cancelling_at": int(time.time())})

    async def stop(self) -> None:
        """What is not over is taken up by the next run."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, batch_id: str) -> None:
        self._tasks.pop(batch_id, None)
        self.jobs.open_batches.pop(batch_id, None)
        self._cancelled.discard(batch_id)
        self._payers.pop(batch_id, None)

    # One batch

    async def _work(self, row: BatchRow) -> None:
        """Until it is over; what cannot be written now is tried again later."""
        found: BatchRow | None = row
        while found is not None:
            try:
                await self._go_through(found)
                return
            except StoreError as error:
                LOGGER.warning("batch %s waits: %s", row.id, error)
            await asyncio.sleep(STORE_RETRY_S)
            with contextlib.suppress(StoreError):
                found = await self._read(tables.batch_of, row.id)

    async def _go_through(self, row: BatchRow) -> None:
        payer = await self._read(account_of, row.id)
        if payer is not None:
            self._payers[row.id] = payer
        if row.status == "validating" and not await self._validate(row):
            return
        expires_s = msgspec.json.decode(row.value)["expires_at"]
        if row.status != "finalizing":
            await self._answer_all(row, expires_s)
        is_cancelled, is_late = row.id in self._cancelled, time.time() >= expires_s
        outcome = "cancelled" if is_cancelled else "completed"
        if is_late and not is_cancelled and await self._has_unanswered(row):
            outcome = "expired"
        await self._finalize(row, outcome)

    async def _validate(self, row: BatchRow) -> bool:
        path = self.jobs.storage.blobs.path(row.input_file)
        num_total, faults = await asyncio.to_thread(check_lines, path, row.endpoint)
        now = int(time.time())
        if faults:
            errors = {"errors": [fault._asdict() for fault in faults], "failed_at": now}

            def work(transaction: Transaction) -> None:
                _merge(transaction, row.id, "failed", errors, num_total)
                last_bill(transaction, row.id)

            await self._write(work)
            return False
        model = self._first_model(row)
        if row.id not in self._cancelled:
            await self._set(row.id, "in_progress", {"in_progress_at": now, "model": model}, num_total)
        return True

    async def _answer_all(self, row: BatchRow, expires_s: float) -> None:
        """Lines in their order, as many at a time as keep the engine busy."""
        answered = await self._read(tables.answered_lines, row.id)
        gate = self._open_gate()
        running: set[asyncio.Task[None]] = set()

        faults: list[BaseException] = []

        def is_to_stop() -> bool:
            return bool(faults) or row.id in self._cancelled or time.time() >= expires_s

        def on_end(task: "asyncio.Task[None]") -> None:
            running.discard(task)
            gate.release()
            fault = None if task.cancelled() else task.exception()
            if fault is not None:
                faults.append(fault)

        try:
            for number, data in self._lines(row):
                if number in answered:
                    continue
                while not await _entered(gate):
                    if is_to_stop():
                        return
                if is_to_stop():
                    gate.release()
                    return
                task = asyncio.create_task(self._answer(row, read_line(number, data)))
                running.add(task)
                task.add_done_callback(on_end)
            while running and not is_to_stop():
                await asyncio.wait(running, timeout=RETRY_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = list(running)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if faults:
                raise faults[0]

    def _lines(self, row: BatchRow) -> Iterator[tuple[int, bytes]]:
        return lines_of(self.jobs.storage.blobs.path(row.input_file))

    def _first_model(self, row: BatchRow) -> str:
        """The model that the first line names; lines may name others."""
        body: Any = next((read_line(number, data).body for number, data in self._lines(row)), {})
        with suppress(ApiError):
            return self.jobs.responses.front.models.find(body.get("model")).known_name
        return str(body.get("model"))

    def _open_gate(self) -> asyncio.Semaphore:
        """One for all batches: it is the engines that are shared."""
        if self._gate is None:
            facts = [model.client.facts for model in self.jobs.responses.front.models]
            num_sequences = max((one.max_sequences for one in facts if one is not None), default=SEQUENCES)
            self._gate = asyncio.Semaphore(OVERBOOKED * num_sequences)
        return self._gate

    async def _answer(self, row: BatchRow, line: BatchLine) -> None:
        request_id = self.jobs.new_id("req_")
        usage = LineUsage()
        caller = Caller(tenant=row.tenant, request_id=request_id, is_batch=True)
        payer = self._payers.get(row.id)
        model = ""
        try:
            if payer is not None and payer.is_bounded:
                body = checked_body(ENDPOINTS[row.endpoint], line.body)
                most = line_bound(row.endpoint, body, line.num_bytes, self.jobs.responses.front.models.longest_context)
                caller = replace(caller, most=most)
            answer = await answer_request(self.jobs.responses, row.endpoint, line.body, caller)
            data, usage, is_error = answer_line(line.custom_id, 200, answer.body, request_id), answer.usage, False
            model = str(answer.body.get("model") or "")
        except ApiError as error:
            data, is_error = failed_line(line.custom_id, error, request_id), True

        def work(transaction: Transaction) -> None:
            is_new = tables.add_line(transaction, row.id, line.number, data, usage, is_error=is_error)
            if is_new and payer is not None and not is_error:
                bill_id = f"{row.id}.{line.number}"
                add_bill(transaction, bill_of(payer, bill_id, model, *usage[:3], is_last=False))

        await self._write(work)

    # The end of a batch

    async def _has_unanswered(self, row: BatchRow) -> bool:
        answered = await self._read(tables.answered_lines, row.id)
        return any(number not in answered for number, _ in self._lines(row))

    async def _finalize(self, row: BatchRow, outcome: str) -> None:
        if outcome == "completed":
            await self._set(row.id, "finalizing", {"finalizing_at": int(time.time())})
        elif outcome == "expired":
            await self._give_up_rest(row)
        files = await asyncio.to_thread(self._write_files, row)
        now = int(time.time())
        fields = {f"{kind}_file_id": file.id for kind, file in files.items()} | {f"{outcome}_at": now}

        def work(transaction: Transaction) -> None:
            for file in files.values():
                tables.add_file(transaction, file)
            _merge(transaction, row.id, outcome, fields)
            tables.drop_lines(transaction, row.id)
            last_bill(transaction, row.id)

        await self._write(work)

    async def _give_up_rest(self, row: BatchRow) -> None:
        answered = await self._read(tables.answered_lines, row.id)
        for number, data in self._lines(row):
            if number not in answered:
                answer = expired_line(read_line(number, data).custom_id)
                keep = partial(tables.add_line, is_error=True)
                await self._write(keep, row.id, number, answer, LineUsage())

    def _write_files(self, row: BatchRow) -> dict[str, FileRow]:
        """Answers and errors, in the order of their lines; a kind there is nothing of has no file. Blocks."""
        database, blobs = self.jobs.storage.database, self.jobs.storage.blobs
        kept_s = msgspec.json.decode(row.value).get("output_expires_s")
        files = {}
        for kind, is_error in (("output", False), ("error", True)):
            file_id, num_bytes, last = self.jobs.new_id("file-"), 0, 0
            with blobs.writer(file_id) as target:
                some = partial(tables.answers_after, batch_id=row.id, count=WRITE_LINES, is_error=is_error)
                while answers := database.read(partial(some, line=last)).result():
                    for number, data in answers:
                        target.write(data)
                        num_bytes, last = num_bytes + len(data), number
            if not num_bytes:
                blobs.delete(file_id)
                continue
            now = int(time.time())
            expires_s = None if kept_s is None else row.created_s + kept_s
            name = f"{row.id}_{kind}.jsonl"
            files[kind] = FileRow(file_id, row.tenant, name, "batch_output", num_bytes, now, expires_s)
        return files

    # The database

    async def _set(self, batch_id: str, status: str, fields: dict[str, Any], num_total: int | None = None) -> None:
        await self._write(_merge, batch_id, status, fields, num_total)


async def _entered(gate: asyncio.Semaphore) -> bool:
    """A place was free, or became so within a moment."""
    try:
        async with asyncio.timeout(RETRY_S):
            return await gate.acquire()
    except TimeoutError:
        return False


async def answer_request(service: Responses, endpoint: str, raw: Any, caller: Caller) -> LineAnswer:
    """The answer to one request, tried again while it fails through no fault of its own. Raises ApiError."""
    row = ENDPOINTS[endpoint]
    body = checked_body(row, raw)
    num_tries = 0
    while True:
        model = service.front.models.find(getattr(body, "model", None))
        try:
            async with service.front.having(model):
                return await row.answer(service, model, caller, body)
        except CapacityError:
            await asyncio.sleep(RETRY_S)  # there is no room: it waits, however long
            continue
        except RequestError as refusal:
            raise error_of(refusal) from None
        except Failure as failure:
            error = error_of_finish(failure.finish)
        except ApiError as refusal:
            error = refusal
        except PenstockError:
            error = failed()
        num_tries += 1
        is_ours = error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.INTERNAL)
        if not is_ours or num_tries == MAX_TRIES:
            raise error
        await asyncio.sleep(RETRY_S)


def _merge(
    transaction: Transaction, batch_id: str, status: str, fields: dict[str, Any], num_total: int | None = None
) -> None:
    row = tables.batch_of(transaction, batch_id)
    if row is not None:
        value = msgspec.json.decode(row.value) | fields
        tables.set_batch(transaction, batch_id, status, msgspec.json.encode(value).decode(), num_total)
