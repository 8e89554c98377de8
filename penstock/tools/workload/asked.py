"""What is asked, as flags: lengths, what prompts share, turns. Bench, simulate and plan take these, and each has more."""

from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.tools.workload.arrivals import Arrivals, AtOnce, Constant, Gamma, Poisson
from penstock.tools.workload.workload import Conversation, SharedPrefix


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked."""

    prompts: str = "sharegpt-prompts"
    """Prompt tokens: 512, 100-1024, lognormal:MEDIAN:SIGMA[:LOW-HIGH], file:PATH or sharegpt-prompts"""
    answers: str = "sharegpt-answers"
    """Answer tokens, written likewise, or sharegpt-answers"""
    shared_prefix: int | None = None
    """Tokens that prompts begin with in common, before those of their own"""
    turns: int = 1
    """Turns of a conversation, each with all before it as its history; numbers are then of conversations"""
    think_s: float = 0.0
    """Seconds between an answer and the next turn, or the next question of a user"""
    seed: int = 0
    """The same seed gives the same load"""

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 1000:
            raise ConfigError(f"--turns is {self.turns}; choose 1 to 1000")
        if not 0.0 <= self.think_s <= 1e6:
            raise ConfigError(f"--think-s is {self.think_s}; choose 0 or more seconds")

    @property
    def conversation(self) -> Conversation | None:
        return None if self.turns == 1 else Conversation(self.turns, self.think_s)

    def prefix(self, num_prefixes: int = 1, fraction: float = 1.0) -> SharedPrefix | None:
        return SharedPrefix(self.shared_prefix, num_prefixes, fraction) if self.shared_prefix else None


def arrivals_of(rate: float, burstiness: float) -> Arrivals:
    """At a rate with gaps so much spread; a rate of 0 is everybody at once."""
    if rate == 0.0:
        return AtOnce()
    if burstiness == 0.0:
        return Constant(rate)
    return Poisson(rate) if burstiness == 1.0 else Gamma(rate, burstiness)
