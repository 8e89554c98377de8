"""The highest rate that a server carries within its targets, by doubling and bisection. How to try a rate is not its part."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.errors import ConfigError

MOST_RATE = 1e5
LEAST_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one rate."""

    rate: float
    is_met: bool
    is_trusted: bool = True
    """False: the client, not the server, was at its end."""


@dataclass(frozen=True, slots=True)
class Knee:
    rate: float | None
    """The highest rate that met its targets; None if none did."""
    beyond: float | None
    """The lowest that did not; None if all did that could be tried."""
    trials: tuple[Trial, ...]

    @property
    def is_bounded_by_client(self) -> bool:
        return any(not trial.is_trusted for trial in self.trials)


async def find_knee(
    attempt: Callable[[float], Awaitable[Trial]], start: float, precision: float = 0.1, most_trials: int = 16
) -> Knee:
    """Double until the targets are missed (or halve until they are met), then halve the gap until it is small enough."""
    if not LEAST_RATE <= start <= MOST_RATE:
        raise ConfigError(f"the search begins at {start} requests a second; choose {LEAST_RATE} to {MOST_RATE:,.0f}")
    trials: list[Trial] = []
    good: float | None = None
    bad: float | None = None
    rate = start
    while len(trials) < most_trials:
        trial = await attempt(rate)
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
        if not LEAST_RATE <= rate <= MOST_RATE:
            break
    return Knee(good, bad, tuple(trials))
