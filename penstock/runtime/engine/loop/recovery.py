"""Steps that failed: computed again in parts until the sequence at fault is found, so that the results of all others stand.

Knows batches, tickets and outputs. Which sequences are still there, and what becomes of them, is the loop's business.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import EngineError
from penstock.runtime.core.batch import Batch, StepOutput, joined
from penstock.runtime.core.runner import Ticket

Launch = Callable[[Batch], Ticket]
"""Starts a batch as the loop does."""
MAX_LOST_STEPS = 3
"""Steps in a row in which nothing could be computed before the engine, not the requests, is held at fault."""


class ResultPart(NamedTuple):
    """A ticket for some chunks of a batch. The sequences of the other chunks have left, so their results are dropped."""

    ticket: Ticket | None
    indices: tuple[int, ...]
    num_chunks: int

    def draw(self) -> None:
        if self.ticket is not None:
            self.ticket.draw()

    def result(self) -> StepOutput:
        output = self.ticket.result() if self.ticket else StepOutput(())
        return _spread(output, self.indices, self.num_chunks)


class NotLaunched(NamedTuple):
    """The ticket of a step that could not be started."""

    error: Exception

    def draw(self) -> None:
        """There is nothing to draw from."""

    def result(self) -> StepOutput:
        raise self.error


class StepRecovery:
    """Counts steps that were lost one after another."""

    def __init__(self) -> None:
        self.num_lost = 0
        """Steps in a row of which nothing could be computed; the loop sets it back when one succeeds."""
        self._num_raised = 0
        """Chunks of the failed step that fail by themselves. Others may be wrong because they read what those were to write."""

    def lose(self, error: Exception) -> None:
        """A failed step cannot be computed again; raises EngineError after a few in a row."""
        self.num_lost += 1
        if self.num_lost >= MAX_LOST_STEPS:
            raise EngineError(f"a step failed {MAX_LOST_STEPS} times: {_describe(error)}") from error

    def recover(self, batch: Batch, live: tuple[int, ...], error: Exception, launch: Launch) -> StepOutput:
        """Compute the live chunks of a failed step in parts. The rows of sequences that have left may have other owners."""
        part = batch.only(live)._replace(copies=())
        try:
            if batch.copies:
                launch(batch.only(())).result()
        except Exception as copy_error:
            raise EngineError(f"blocks could not be copied: {_describe(copy_error)}") from copy_error
        self._num_raised = 0
        output = self._isolate(part, error, launch) if len(live) == len(batch.chunks) else self._compute(part, launch)
        if live and self._num_raised == len(live):
            self.num_lost += 1
            if self.num_lost >= MAX_LOST_STEPS or len(live) > 1:
                raise EngineError(f"nothing of a step of {len(live)} could be computed: {_describe(error)}") from error
        return _spread(output, live, len(batch.chunks))

    def _compute(self, part: Batch, launch: Launch) -> StepOutput:
        if not part.chunks:
            return StepOutput(())
        try:
            return launch(part).result()
        except Exception as error:
            return self._isolate(part, error, launch)

    def _isolate(self, batch: Batch, error: Exception, launch: Launch) -> StepOutput:
        """Halve a failed step until a single chunk fails: only that sequence ends with the error."""
        if len(batch.chunks) == 1:
            self._num_raised += 1
            return StepOutput(tokens=((),), failures=((0, _describe(error)),))
        middle = len(batch.chunks) // 2
        parts = [batch.only(range(middle)), batch.only(range(middle, len(batch.chunks)))]
        return joined([self._compute(part, launch) for part in parts], [len(part.chunks) for part in parts])


def _spread(output: StepOutput, indices: tuple[int, ...], num_chunks: int) -> StepOutput:
    """The output of a whole batch, given that of those of its chunks that were computed; the others failed."""
    if len(indices) == num_chunks:
        return output
    places = {index: place for place, index in enumerate(indices)}
    columns = {
        name: tuple(column[places[index]] if index in places else () for index in range(num_chunks)) if column else ()
        for name, column in output._asdict().items()
        if name != "failures"
    }
    failures = [(indices[place], message) for place, message in output.failures]
    failures += [(index, "not computed") for index in range(num_chunks) if index not in places]
    return StepOutput(
        **{**columns, "tokens": columns["tokens"] or ((),) * num_chunks}, failures=tuple(sorted(failures))
    )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
