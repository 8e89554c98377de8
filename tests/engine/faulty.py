"""Runners that fail on purpose."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.runtime.core.batch import Arrival, Batch, Chunk, StepOutput
from penstock.runtime.core.runner import Masks, Runner, Ticket

POISON = "poison"
"""Adapter of requests that a `PoisonedRunner` cannot compute."""


@dataclass(frozen=True)
class Broken:
    """A ticket whose step turns out to have failed."""

    error: Exception

    def draw(self) -> None:
        """It has failed."""

    def result(self) -> StepOutput:
        raise self.error


@dataclass
class PoisonedRunner:
    """Fails every step that holds a chunk of a poisoned sequence for which `strikes(chunk)`.

    `when` is "before" (nothing was computed), "after" (all was, then the launch failed) or "result" (the launch went well).
    """

    inner: Runner
    strikes: Callable[[Chunk], bool]
    when: str = "before"
    error: Callable[[], Exception] = lambda: RuntimeError("a planted fault")
    is_poisoned: Callable[[Arrival], bool] = lambda arrival: arrival.adapter == POISON
    rows: dict[int, bool] = field(default_factory=dict)
    num_launches: int = 0

    def launch(self, batch: Batch, *masks: Masks) -> Ticket:
        self.num_launches += 1
        for chunk in batch.chunks:
            if chunk.arrival is not None:
                self.rows[chunk.row] = self.is_poisoned(chunk.arrival)
        is_struck = any(self.rows[chunk.row] and self.strikes(chunk) for chunk in batch.chunks)
        if is_struck and self.when == "before":
            raise self.error()
        ticket = self.inner.launch(batch, *masks)
        if is_struck and self.when == "after":
            raise self.error()
        return Broken(self.error()) if is_struck else ticket


@dataclass
class FailingRunner:
    """Fails the launches whose numbers, counted from 0, are listed; computes all others."""

    inner: Runner
    failing: frozenset[int]
    when: str = "before"
    num_launches: int = 0

    def launch(self, batch: Batch, *masks: Masks) -> Ticket:
        number = self.num_launches
        self.num_launches += 1
        if number in self.failing and self.when == "before":
            raise MemoryError("a planted shortage")
        ticket = self.inner.launch(batch, *masks)
        return Broken(MemoryError("a planted shortage")) if number in self.failing else ticket
