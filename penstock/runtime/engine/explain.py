"""Why a step is what it is, in one line of the log: who computes how much, who waits for what, who was preempted for whom.

Request ids are the engine's own; the server's log names them beside a client's. No token and no text stands here.
"""

import logging

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.loop.listeners import StepListener

LOGGER = logging.getLogger(__name__)


def explain_steps(engine: Engine) -> None:
    """Have the engine's decisions logged, if anybody reads lines of that level; else nothing is done, then or later."""
    if LOGGER.isEnabledFor(logging.DEBUG):
        engine.listeners.add(Explainer(engine.scheduler))


class Explainer(StepListener):
    """Logs each planned step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def scheduled(self, batch: Batch) -> None:
        LOGGER.debug("%s", explained(self._scheduler, batch))


def explained(scheduler: Scheduler, batch: Batch) -> str:
    """`step 7: 12/1 decodes 1 with 3 drafts, 14 prefills 0-512 of 900 (64 cached); 2 wait for rows; preempted 9 for 12 ...`"""
    rows = {sequence.row: sequence for sequence in scheduler.roster.running}
    num_tokens = sum(chunk.length for chunk in batch.chunks)
    parts = [
        f"step {batch.step}: {num_tokens} of {scheduler.limits.max_batch_tokens} tokens: "
        + ", ".join(_share(rows[chunk.row], chunk) for chunk in batch.chunks)
    ]
    if scheduler.num_waiting:
        parts.append(f"{scheduler.num_waiting} wait" + (f" for {scheduler.lacks}" if scheduler.lacks else ""))
    for one in scheduler.preemptions:
        name, needy = _name(one.request_id, one.choice), _name(one.needy_id, one.needy_choice)
        parts.append(f"preempted {name} for {'itself' if needy == name else needy}, which lacks {one.lacks}")
    return "; ".join(parts)


def _share(sequence: Sequence, chunk: Chunk) -> str:
    name = _name(sequence.request_id, sequence.choice)
    if chunk.num_drafts:
        return f"{name} decodes 1 with {chunk.num_drafts} drafts"
    if chunk.arrival is None and chunk.length == 1:
        return f"{name} decodes 1"
    cached = f" ({chunk.start} cached)" if chunk.arrival is not None and chunk.start else ""
    return f"{name} prefills {chunk.start}-{chunk.end} of {len(sequence.tokens)}{cached}"


def _name(request_id: int, choice: int) -> str:
    return f"{request_id}/{choice}" if choice else str(request_id)
