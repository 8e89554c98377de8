"""What is asked, as flags: lengths, what prompts share, turns, gaps. Bench, simulate, plan and tune take these and more."""

from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import ConfigError
from penstock.fields import check, leaf
from penstock.tools.workload import lengths
from penstock.tools.workload.arrivals import Arrivals, AtOnce, Constant, Gamma, Poisson
from penstock.tools.workload.workload import Conversation, Recipe, SharedPrefix


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked."""

    prompts: str = "sharegpt-prompts"
    """Prompt tokens: 512, 100-1024, lognormal:MEDIAN:SIGMA[:LOW-HIGH], file:PATH or sharegpt-prompts"""
    answers: str = "sharegpt-answers"
    """Answer tokens, written likewise, or sharegpt-answers"""
    shared_prefix: int | None = None
    """Tokens that prompts begin with in common, before those of their own"""
    turns: int = leaf(1, 1, 1000)
    """Turns of a conversation, each with all before it as its history; numbers are then of conversations"""
    think_s: float = leaf(0.0, 0, 1e6, unit="seconds")
    """Seconds between an answer and the next turn, or the next question of a user"""
    arrivals: Literal["poisson", "constant", "gamma"] = "poisson"
    """Gaps between arrivals: of independent users, even, or in bursts"""
    burstiness: float | None = leaf(None, 0, 100)
    """Spread of the gaps over their mean, in place of --arrivals: 0 is even, 1 poisson, 2 comes in bursts"""
    seed: int = 0
    """The same seed gives the same load"""

    def __post_init__(self) -> None:
        check(self)
        if self.burstiness is not None and self.arrivals == "constant":
            raise ConfigError(
                "--burstiness is the spread of gaps that --arrivals constant makes even; leave one of the two"
            )

    @property
    def variation(self) -> float:
        """Of the gaps between arrivals: their standard deviation over their mean."""
        return SPREADS[self.arrivals] if self.burstiness is None else self.burstiness

    @property
    def conversation(self) -> Conversation | None:
        return None if self.turns == 1 else Conversation(self.turns, self.think_s)

    def recipe_at(self, rate: float, num_requests: int, **more: Any) -> Recipe:
        """Such requests, so many a second; `more` is what else a recipe takes."""
        prompts, answers = lengths.parse(self.prompts), lengths.parse(self.answers)
        arrivals = arrivals_of(rate, self.variation)
        return Recipe(arrivals, prompts, answers, num_requests, conversation=self.conversation, **more)

    def prefix(self, num_prefixes: int = 1, fraction: float = 1.0) -> SharedPrefix | None:
        return SharedPrefix(self.shared_prefix, num_prefixes, fraction) if self.shared_prefix else None


SPREADS = {"poisson": 1.0, "constant": 0.0, "gamma": 2.0}


def arrivals_of(rate: float, variation: float) -> Arrivals:
    """At a rate with gaps so much spread; a rate of 0 is everybody at once."""
    if rate == 0.0:
        return AtOnce()
    if variation == 0.0:
        return Constant(rate)
    return Poisson(rate) if variation == 1.0 else Gamma(rate, variation)
