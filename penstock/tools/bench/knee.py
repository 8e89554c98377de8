"""The highest rate that a server carries within its targets, by doubling and bisection. The caller knows how to try a rate.

It ends by itself: after so many trials at the most, and it never goes below a rate at which requests hardly meet each other.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.errors import ConfigError

MOST_RATE = 1e5
LEAST_RATE = 1e-3
MOST_TRIALS = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one rate."""

    rate: float
    is_met: bool
    fault: str = ""
    """Why it says nothing of this rate: `client-bound`, or why the server is gone."""
    is_alone: bool = False
    """Requests came one at a time, each after the answer before it: `rate` is what came of that, and bounds nothing."""

    @property
    def is_trusted(self) -> bool:
        return not self.fault


@dataclass(frozen=True, slots=True)
class Knee:
    rate: float | None
    """The highest rate that met its targets; None if none did."""
    beyond: float | None
    """The lowest that did not; None if all did that could be tried."""
    trials: tuple[Trial, ...]
    is_partial: bool = False
    """The search was ended before it was done."""

    @property
    def is_bounded_by_client(self) -> bool:
        return any(trial.fault == "client-bound" and not trial.is_alone for trial in self.trials)


async def find_knee(
    attempt: Callable[[float], Awaitable[Trial | None]],
    start: float,
    *,
    least: float = LEAST_RATE,
    precision: float = 0.1,
    most_trials: int = MOST_TRIALS,
) -> Knee:
    """Double until the targets are missed (or halve until they are met), then halve the gap until it is small enough.

    `attempt` gives None to end the search.
    """
    if not LEAST_RATE <= start <= MOST_RATE:
        raise ConfigError(f"the search begins at {start} requests a second; choose {LEAST_RATE} to {MOST_RATE:,.0f}")
    trials: list[Trial] = []
    good: float | None = None
    bad: float | None = None
    rate = start
    while len(trials) < most_trials:
        trial = await attempt(rate)
        if trial is None:
            return Knee(good, bad, tuple(trials), is_partial=True)
        trials.append(trial)
        if not trial.is_trusted:
            break
        if trial.is_met:
            good = rate
        else:
            bad = rate
        if good is None:
            rate = rate / 2
        elif bad is None:
            rate = rate * 2
        elif bad / good <= 1.0 + precision:
            break
        else:
            rate = (good * bad) ** 0.5
        if not least <= rate <= MOST_RATE:
            break
    return Knee(good, bad, tuple(trials))
