"""Drives a scheduler by hand: what is drawn is made up, what is planned is looked at."""

from collections.abc import Callable
from typing import Any

from penstock.core.batch import Batch, Chunk, Delta, StepOutput
from penstock.core.scheduler import Scheduler
from penstock.core.sequence import Sequence


def output_of(
    batch: Batch, draw: Callable[[Chunk], tuple[int, ...]] = lambda chunk: (7,), **columns: Any
) -> StepOutput:
    """What a runner would give: tokens where they are asked for."""
    return StepOutput(tuple(draw(chunk) if chunk.samples else () for chunk in batch.chunks), **columns)


def step(scheduler: Scheduler, now: float = 0.0, **wishes: Any) -> tuple[Batch | None, tuple[Delta, ...]]:
    """One whole step."""
    batch = scheduler.schedule(now)
    deltas = () if batch is None else scheduler.commit(batch, output_of(batch, **wishes), now)
    scheduler.check()
    return batch, deltas


def running(scheduler: Scheduler) -> dict[tuple[int, int], Sequence]:
    """Those inside, by request id and choice."""
    return {(one.request.request_id, one.choice): one for one in scheduler._running}


def planned(scheduler: Scheduler, batch: Batch | None) -> dict[int, Chunk]:
    """A launched batch's chunks by request id."""
    if batch is None:
        return {}
    flight = scheduler._flights[batch.step]
    return {one.request.request_id: chunk for (one, _), chunk in zip(flight, batch.chunks, strict=True)}
