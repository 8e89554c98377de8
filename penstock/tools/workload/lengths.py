"""How long prompts and answers are: seeded distributions over whole numbers of tokens."""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from penstock.errors import ConfigError

MAX_LENGTH = 10_000_000
MAX_LINE = 64


def _check_range(low: int, high: int) -> None:
    if not 1 <= low <= high <= MAX_LENGTH:
        raise ConfigError(f"lengths from {low} to {high}: choose 1 <= low <= high <= {MAX_LENGTH:,}")


class Lengths(Protocol):
    def draw(self, random: Random) -> int:
        """A length of at least one token."""


@dataclass(frozen=True, slots=True)
class Fixed:
    length: int

    def __post_init__(self) -> None:
        _check_range(self.length, self.length)

    def draw(self, random: Random) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high` alike."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Most are near the median, a few are many times longer; cut to `low` .. `high`."""

    median: float
    sigma: float
    """Standard deviation of the logarithm: 0.5 is narrow, 1 wide."""
    low: int = 1
    high: int = 8192

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if not (1.0 <= self.median <= MAX_LENGTH and 0.0 <= self.sigma <= 5.0):
            raise ConfigError(
                f"lognormal of median {self.median:g} and sigma {self.sigma:g}: choose a median from 1 and a sigma from 0 to 5"
            )

    def draw(self, random: Random) -> int:
        length = round(random.lognormvariate(math.log(self.median), self.sigma))
        return min(max(length, self.low), self.high)


@dataclass(frozen=True, slots=True)
class LengthMixture:
    """One of several kinds, each with its weight."""

    kinds: tuple[tuple[float, Lengths], ...]

    def __post_init__(self) -> None:
        if not self.kinds or not all(math.isfinite(weight) and weight > 0.0 for weight, _ in self.kinds):
            raise ConfigError("a mixture of lengths needs at least one kind, each with a weight above 0")

    def draw(self, random: Random) -> int:
        point = random.random() * sum(weight for weight, _ in self.kinds)
        for weight, lengths in self.kinds:
            point -= weight
            if point < 0.0:
                return lengths.draw(random)
        return self.kinds[-1][1].draw(random)


@dataclass(frozen=True, slots=True)
class Observed:
    """One of the lengths that were seen, each as likely as it was frequent."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("no lengths to draw from; give at least one")
        _check_range(min(self.values), max(self.values))

    def draw(self, random: Random) -> int:
        return random.choice(self.values)


SHAREGPT_PROMPTS = LengthMixture(((0.6, LogNormal(28, 1.0, 4, 1024)), (0.4, LogNormal(210, 1.0, 4, 2048))))
"""Chats as people share them: short questions, and now and then a pasted text; mean near 165 tokens."""
SHAREGPT_ANSWERS = LengthMixture(((0.3, LogNormal(40, 0.9, 1, 512)), (0.7, LogNormal(375, 0.65, 4, 2048))))
"""A word, a sentence or an essay; mean near 335 tokens."""

NAMED: dict[str, Lengths] = {"sharegpt-prompts": SHAREGPT_PROMPTS, "sharegpt-answers": SHAREGPT_ANSWERS}


def parse(text: str) -> Lengths:
    """Read `512`, `100-1024`, `lognormal:MEDIAN:SIGMA[:LOW-HIGH]`, `file:PATH` or a name from `NAMED`."""
    if text.strip().startswith("file:"):
        return read(Path(text.strip().removeprefix("file:")))
    name = text.strip().lower()
    if name in NAMED:
        return NAMED[name]
    try:
        if name.startswith("lognormal:"):
            median, sigma, *rest = name.split(":")[1:]
            bounds = [int(bound) for bound in rest[0].split("-")] if rest else [1, 8192]
            if len(rest) > 1 or len(bounds) != 2:
                raise ValueError(name)
            return LogNormal(float(median), float(sigma), bounds[0], bounds[1])
        if "-" in name:
            low, high = name.split("-")
            return Uniform(int(low), int(high))
        return Fixed(int(name))
    except ValueError:
        raise ConfigError(
            f"cannot read lengths {text!r}: write 512, 100-1024, lognormal:MEDIAN:SIGMA, "
            f"lognormal:MEDIAN:SIGMA:LOW-HIGH, file:PATH, {' or '.join(NAMED)}"
        ) from None


def read(path: Path) -> Observed:
    """Lengths from a text file, one a line."""
    values: list[int] = []
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(MAX_LINE):
                if line.strip():
                    values.append(int(line))
                    _check_range(values[-1], values[-1])
    except OSError as error:
        raise ConfigError(f"cannot read the lengths in {path}: {error.strerror}") from error
    except ValueError:
        raise ConfigError(
            f"{path} holds something other than one whole number a line, near number {len(values) + 1}"
        ) from None
    if not values:
        raise ConfigError(f"{path} holds no length; write one whole number a line")
    return Observed(tuple(values))
