"""Drives a scheduler by hand: what is drawn is made up, what is planned is looked at."""

from collections.abc import Callable
from typing import Any

from penstock.runtime.core.batch import Batch, Chunk, Delta, StepOutput
from penstock.runtime.core.prefix import Holding, Namespace
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from tests.engine.answers import LIMITS, make_request


def output_of(
    batch: Batch, draw: Callable[[Chunk], tuple[int, ...]] = lambda chunk: (7,), **columns: Any
) -> StepOutput:
    """What a runner would give: tokens where they are asked for."""
    return StepOutput(tuple(draw(chunk) if chunk.samples else () for chunk in batch.chunks), **columns)


def step(scheduler: Scheduler, now: float = 0.0, **options: Any) -> tuple[Batch | None, tuple[Delta, ...]]:
    """One whole step."""
    batch = scheduler.schedule(now)
    deltas = () if batch is None else scheduler.commit(batch, output_of(batch, **options), now)
    scheduler.check()
    return batch, deltas


def pin(scheduler: Scheduler, request: Request, until_s: float) -> int:
    """Pin what is cached of a prompt; returns how many tokens that is."""
    match = scheduler.pool.match(Holding(list(request.prompt), Namespace(request.salt, request.adapter)))
    scheduler.pool.pin(match, until_s)
    return len(match.blocks) * scheduler.limits.block_size


def running(scheduler: Scheduler) -> dict[tuple[int, int], Sequence]:
    """Those inside, by request id and choice."""
    return {(one.request.request_id, one.choice): one for one in scheduler.roster.running}


def planned(scheduler: Scheduler, batch: Batch | None) -> dict[int, Chunk]:
    """A launched batch's chunks by request id."""
    if batch is None:
        return {}
    flight = scheduler.flights.sequences(batch)
    return {one.request.request_id: chunk for one, chunk in zip(flight, batch.chunks, strict=True)}


def make_scheduler(order: str = "first-come", kind: type[Scheduler] = Scheduler, **limits: Any) -> Scheduler:
    return kind(LIMITS._replace(**limits), ORDERS[order]())


def add(
    scheduler: Scheduler, request_id: int, num_prompt: int = 3, max_tokens: int | None = 10, **options: Any
) -> None:
    """Prompts of different requests have nothing in common."""
    prompt = range(1000 * request_id, 1000 * request_id + num_prompt)
    scheduler.add(make_request(request_id, prompt, max_tokens=max_tokens, **options), 0.0)


def fill(scheduler: Scheduler, *requests: dict[str, Any]) -> None:
    """Let requests in, each of one block with one token drawn beyond it unless it says otherwise."""
    for number, options in enumerate(requests, 1):
        add(scheduler, number, **{"num_prompt": 4, "max_tokens": 12, **options})
    step(scheduler)
    assert inside(scheduler) == set(range(1, len(requests) + 1))


def inside(scheduler: Scheduler) -> set[int]:
    return {request_id for request_id, _ in running(scheduler)}


def planned_now(scheduler: Scheduler) -> dict[int, Chunk]:
    """One whole step; its chunks by request id."""
    batch = scheduler.schedule(0.0)
    chunks = planned(scheduler, batch)
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.check()
    return chunks


def finish(scheduler: Scheduler, max_steps: int = 300) -> list[Delta]:
    """Run to the end; returns all deltas."""
    deltas: list[Delta] = []
    for _ in range(max_steps):
        if not scheduler.has_work:
            return deltas
        deltas.extend(step(scheduler)[1])
    raise AssertionError("no end in sight")
