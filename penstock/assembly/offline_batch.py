"""A batch answered here and now: a file of requests in, a file of answers out, no server.

    FILE.jsonl  ->  OUT.part (an answer a line, as they come)  ->  OUT and, if any failed, its errors (in the file's order)

Whatever stops it, what stands in the part file is not asked again.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.engine.spawn import Spawned
from penstock.service.config import ServerConfig
from penstock.service.server.calls.generation import Caller
from penstock.service.server.front import Front
from penstock.service.server.http.faults import ApiError
from penstock.service.server.jobs.lines import BatchLine, answer_line, check_lines, failed_line, lines_of, read_line
from penstock.service.server.jobs.runner import OVERBOOKED, answer_request
from penstock.service.server.responses.routes import Responses, make_responses
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.server.text import Text
from penstock.service.store import responses
from penstock.service.store.jobs import LineUsage
from penstock.service.store.storage import open_storage

OnLine = Callable[[int, int], None]
"""Told how many requests are answered, and of how many."""


@dataclass(slots=True)
class BatchTotals:
    num_total: int = 0
    num_answered: int = 0
    num_resumed: int = 0
    """Answered by an earlier run."""
    num_failed: int = 0
    num_input: int = 0
    num_output: int = 0


@dataclass(slots=True)
class PartFile:
    """Answers as they come. A last line that was cut off is dropped."""

    path: Path
    offsets: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    """Where the answer to each line lies: its first byte, its length, and whether it is an error."""

    def read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            whole = place = 0
            while data := file.readline():
                place += len(data)
                number, mark, answer = (*data.split(b"\t", 2), b"", b"")[:3]
                if not data.endswith(b"\n") or not number.isdigit() or mark not in (b"0", b"1"):
                    break
                self.offsets[int(number)] = (place - len(answer), len(answer), mark == b"1")
                whole = place
            file.truncate(whole)

    def append(self, file: BinaryIO, number: int, answer: bytes, *, is_error: bool) -> None:
        head = b"%d\t%d\t" % (number, is_error)
        start = file.tell() + len(head)
        file.write(head + answer)
        file.flush()
        self.offsets[number] = (start, len(answer), is_error)

    def write_out(self, output: Path, errors: Path) -> None:
        """The answers in the order of their lines, whole or not at all."""
        with self.path.open("rb") as source:
            for path, is_error in ((output, False), (errors, True)):
                chosen = sorted(
                    (number, start, length) for number, (start, length, e) in self.offsets.items() if e == is_error
                )
                if is_error and not chosen:
                    continue
                made = path.with_name(path.name + ".new")
                with made.open("wb") as target:
                    for _, start, length in chosen:
                        source.seek(start)
                        target.write(source.read(length))
                    target.flush()
                    os.fsync(target.fileno())
                made.replace(path)
        self.path.unlink()


class OfflineBatch:
    def __init__(self, source: Path, output: Path, errors: Path) -> None:
        """Raises ConfigError that names the lines of a file that cannot be answered."""
        self._source = source
        self._output = output
        self._errors = errors
        if not source.is_file():
            raise ConfigError(f"there is no file {source}; name one with a request a line")
        self.totals = BatchTotals()
        self.totals.num_total, faults = check_lines(source, None, max_lines=10**9)
        if faults:
            raise ConfigError("; ".join(fault.message for fault in faults[:5]) + f" ({len(faults)} faults in {source})")
        self._part = PartFile(output.with_name(output.name + ".part"))
        self._part.read()
        self.totals.num_resumed = len(self._part.offsets)
        self.totals.num_failed = sum(is_error for _, _, is_error in self._part.offsets.values())

    def run(self, engine: EngineConfig, command: Sequence[str], text: Text, spawned: Spawned, on_line: OnLine) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            client = EngineClient(command, engine, hang_s=60.0, spawned=spawned)
            runner.run(self._run(client, text, on_line))

    async def _run(self, client: EngineClient, text: Text, on_line: OnLine) -> None:
        model = ServedModel(client, num_tenants=0)
        model.text = text
        front = Front(ServedModels(model), ServerConfig(), "offline")
        storage = open_storage(None, (responses.SCHEMA,))
        service = make_responses(front, storage.database)
        supervisor = asyncio.create_task(client.run())
        work = asyncio.create_task(self._answer_all(service, client, on_line))
        try:
            await asyncio.wait((supervisor, work), return_when=asyncio.FIRST_COMPLETED)
            if supervisor.done() and not work.done():
                supervisor.result()  # raises why there is no engine
            await work
        finally:
            work.cancel()
            await client.stop()
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(work, supervisor, return_exceptions=True)
            storage.close()

    async def _answer_all(self, service: Responses, client: EngineClient, on_line: OnLine) -> None:
        await client.ready.wait()
        facts = client.facts
        gate = asyncio.Semaphore(OVERBOOKED * (facts.max_sequences if facts is not None else 16))
        with self._part.path.open("ab") as file:
            async with asyncio.TaskGroup() as group:
                for number, data in lines_of(self._source):
                    if number not in self._part.offsets:
                        await gate.acquire()
                        task = group.create_task(self._answer(service, read_line(number, data), file, on_line))
                        task.add_done_callback(lambda _: gate.release())
        self._part.write_out(self._output, self._errors)

    async def _answer(self, service: Responses, line: BatchLine, file: BinaryIO, on_line: OnLine) -> None:
        request_id = f"req_{secrets.token_hex(12)}"
        caller = Caller(request_id=request_id, is_batch=True)
        usage = LineUsage()
        try:
            answer = await answer_request(service, line.url, line.body, caller)
            data, usage, is_error = answer_line(line.custom_id, 200, answer.body, request_id), answer.usage, False
        except ApiError as error:
            data, is_error = failed_line(line.custom_id, error, request_id), True
        self._part.append(file, line.number, data, is_error=is_error)
        totals = self.totals
        totals.num_answered += 1
        totals.num_failed += is_error
        totals.num_input += usage.num_input
        totals.num_output += usage.num_output
        on_line(totals.num_resumed + totals.num_answered, totals.num_total)
