"""What the loop tells of its steps, and who listens: the log, views of an observer, the drafts' clock, sizes of steps.

    turned -> scheduled -> launched -> arrived -> landed -> ended          a turn that launches a step and collects it

A listener that overrides nothing costs nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.limits import StepSize
from penstock.runtime.core.scheduler import Scheduler

LOGGER = logging.getLogger(__name__)


class StepArrival(NamedTuple):
    """A step's tokens are there, and nothing went wrong."""

    batch: Batch
    launched_s: float
    asked_s: float
    """Since when the loop has waited for them."""
    now: float
    seconds: float
    """Since the launch, or since the tokens of the step before it."""


class StepListener:
    """Hears of the loop's turns and steps, on the loop's thread."""

    def turned(self, now: float) -> None:
        """A turn of the loop begins, and so the one before it is over."""

    def scheduled(self, batch: Batch) -> None:
        """A step is planned."""

    def launched(self, batch: Batch, now: float) -> None:
        """A step is about to be launched."""

    def arrived(self, arrival: StepArrival) -> None:
        """The oldest step's tokens have come."""

    def landed(self, batch: Batch, output: StepOutput, turn_s: float, now: float) -> None:
        """The oldest step's results, those of a step computed in parts too, are about to be committed."""

    def lost(self) -> None:
        """A step failed or was interrupted: it, and those launched after it, are computed again in other ways."""

    def ended(self, now: float, *, has_work: bool) -> None:
        """The turn has done what it had to; with work left, the time until the next is its own."""

    def resting(self) -> None:
        """The loop is about to sleep."""


EVENTS = ("turned", "scheduled", "launched", "arrived", "landed", "lost", "ended", "resting")


@dataclass(slots=True, eq=False)
class StepListeners:
    """For each event the methods to call, in the order in which listening began."""

    turned: tuple[Callable[[float], None], ...] = ()
    scheduled: tuple[Callable[[Batch], None], ...] = ()
    launched: tuple[Callable[[Batch, float], None], ...] = ()
    arrived: tuple[Callable[[StepArrival], None], ...] = ()
    landed: tuple[Callable[[Batch, StepOutput, float, float], None], ...] = ()
    lost: tuple[Callable[[], None], ...] = ()
    ended: tuple[Callable[..., None], ...] = ()
    resting: tuple[Callable[[], None], ...] = ()

    def add(self, listener: StepListener) -> None:
        for event in EVENTS:
            if getattr(type(listener), event) is not getattr(StepListener, event):
                setattr(self, event, (*getattr(self, event), getattr(listener, event)))

    def remove(self, listener: StepListener) -> None:
        """Nothing happens if it does not listen."""
        for event in EVENTS:
            kept = [method for method in getattr(self, event) if method.__self__ is not listener]
            setattr(self, event, tuple(kept))


class StepDurations(StepListener):
    """Hands on how long each step took."""

    def __init__(self, *notes: Callable[[Batch, float], None]) -> None:
        self._notes = notes

    def arrived(self, arrival: StepArrival) -> None:
        for note in self._notes:
            note(arrival.batch, arrival.seconds)


class StepSizer:
    """Corrects the most tokens of a step by the time that steps take."""

    def __init__(self, scheduler: Scheduler, size: StepSize) -> None:
        self._scheduler = scheduler
        self._size = size
        if size.shared is not None:
            scheduler.resize(scheduler.limits._replace(shared_tokens=size.shared.least))  # grows where it may
        if size.is_target:
            scheduler.resize(scheduler.limits._replace(max_batch_tokens=size.least))

    def note_step(self, batch: Batch, seconds: float) -> None:
        scheduler, before = self._scheduler, self._scheduler.limits
        limits = self._size.resize(before, batch, seconds, is_shared=scheduler.is_shared)
        if limits is not before:
            scheduler.resize(limits)
            sizes, took = (limits.max_batch_tokens, limits.shared_tokens), (batch.num_tokens, seconds)
            LOGGER.info("steps have up to %d tokens from now on, shared ones %d: %d took %.2f s", *sizes, *took)
