"""The loop that joins the scheduler to a runner. Sole caller of the scheduler; never sees a tensor.

    inbox -> add / cancel -> schedule(now) -> runner.launch -> ... -> ticket.result -> commit(now) -> deltas

With `depth` 2 a step is launched before the tokens of the one before it have reached the host.
"""

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from penstock.core.batch import Batch, Delta, Fault, Finish, FinishReason, StepOutput
from penstock.core.request import Request
from penstock.core.scheduler import Scheduler
from penstock.engine.runner import Runner, Ticket
from penstock.errors import CapacityError, EngineError, RequestError

MAX_LOST_STEPS = 3
"""Steps in a row in which nothing could be computed before the engine, not the requests, is held at fault."""


class Heartbeat(NamedTuple):
    """Proof of life: a watcher compares two of them."""

    num_loops: int
    num_steps: int
    time_s: float


class Engine:
    """`submit` and `cancel` may be called from any thread; everything else belongs to the thread that calls `step`."""

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float], *, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.heartbeat = Heartbeat(0, 0, clock())
        self._runner = runner
        self._clock = clock
        self._depth = depth
        self._inbox: SimpleQueue[Request | int] = SimpleQueue()
        self._launched: deque[tuple[Batch, Ticket | Exception]] = deque()
        self._num_lost_steps = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._launched) or not self._inbox.empty()

    def submit(self, request: Request) -> None:
        """Hand over a request. It is answered by deltas, the last of which carries its finish, a refusal included."""
        self._inbox.put(request)

    def cancel(self, request_id: int) -> None:
        """End a request, wherever it is; nothing happens if it has ended."""
        self._inbox.put(request_id)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until something is handed over; False if nothing was."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except Empty:
            return False
        self._inbox.put(message)
        return True

    def step(self) -> tuple[Delta, ...]:
        """Take in what was handed over, launch a step if there is one, and collect the oldest if it is due."""
        now = self._clock()
        deltas = self._take_in(now)
        deltas.extend(self.scheduler.expire(now))
        batch = self.scheduler.schedule(now)
        if batch is not None:
            self._launched.append((batch, self._launch(batch)))
        if self._launched and (batch is None or len(self._launched) >= self._depth):
            deltas.extend(self._collect())
        beat = self.heartbeat
        self.heartbeat = Heartbeat(beat.num_loops + 1, beat.num_steps + (batch is not None), now)
        return tuple(deltas)

    def _take_in(self, now: float) -> list[Delta]:
        deltas: list[Delta] = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, int):
                deltas.extend(self.scheduler.cancel(message))
                continue
            try:
                self.scheduler.add(message, now)
            except RequestError as error:
                deltas.extend(_refusals(message, str(error), Fault.REQUEST))
            except CapacityError as error:
                deltas.extend(_refusals(message, str(error), Fault.CAPACITY))
        return deltas

    def _launch(self, batch: Batch) -> Ticket | Exception:
        try:
            return self._runner.launch(batch)
        except Exception as error:
            return error

    def _collect(self) -> tuple[Delta, ...]:
        """Wait for the oldest step. If it failed, find out whose fault it was; the others' results stand."""
        batch, ticket = self._launched.popleft()
        try:
            output = _result(ticket)
            self._num_lost_steps = 0
        except Exception as error:
            output = self._recover(batch, error)
        return self.scheduler.commit(batch, output, self._clock())

    def _recover(self, batch: Batch, error: Exception) -> StepOutput:
        """Compute a failed step again in parts. Steps launched after it read its tokens, so they are launched anew."""
        later = [(launched, ticket) for launched, ticket in self._launched]
        self._launched.clear()
        for _, ticket in later:
            try:
                _result(ticket)
            except Exception:
                continue
        if batch.copies:
            self._runner.launch(batch.only(())).result()
        output = self._isolate(batch._replace(copies=()), error)
        if len(output.failures) == len(batch.chunks):
            self._num_lost_steps += 1
            if self._num_lost_steps >= MAX_LOST_STEPS or len(batch.chunks) > 1:
                raise EngineError(
                    f"nothing of a step of {len(batch.chunks)} could be computed: {_describe(error)}"
                ) from error
        self._launched.extend((launched, self._launch(launched)) for launched, _ in later)
        return output

    def _isolate(self, batch: Batch, error: Exception) -> StepOutput:
        """Halve a failed step until what fails is a single chunk: that sequence fails, and nobody else."""
        if len(batch.chunks) == 1:
            return StepOutput(tokens=((),), failures=((0, _describe(error)),))
        middle = len(batch.chunks) // 2
        parts = [batch.only(range(middle)), batch.only(range(middle, len(batch.chunks)))]
        outputs = []
        for part in parts:
            try:
                outputs.append(self._runner.launch(part).result())
            except Exception as part_error:
                outputs.append(self._isolate(part, part_error))
        return _joined(parts, outputs)


def _result(ticket: Ticket | Exception) -> StepOutput:
    if isinstance(ticket, Exception):
        raise ticket
    return ticket.result()


def _joined(parts: list[Batch], outputs: list[StepOutput]) -> StepOutput:
    """One output for a batch that was computed in parts."""
    failures: list[tuple[int, str]] = []
    columns: dict[str, list[tuple[object, ...]]] = {"tokens": [], "drafts": [], "logprobs": [], "prompt_logprobs": []}
    offset = 0
    for part, output in zip(parts, outputs, strict=True):
        for name, column in columns.items():
            column.extend(getattr(output, name) or ((),) * len(part.chunks))
        failures.extend((offset + index, message) for index, message in output.failures)
        offset += len(part.chunks)
    filled = {name: tuple(column) if any(column) or name == "tokens" else () for name, column in columns.items()}
    return StepOutput(failures=tuple(failures), **filled)  # type: ignore[arg-type]


def _refusals(request: Request, message: str, fault: Fault) -> list[Delta]:
    finish = Finish(FinishReason.ERROR, message, fault)
    return [Delta(request.request_id, choice, (), finish) for choice in range(request.params.n)]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
