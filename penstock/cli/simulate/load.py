"""Flags of the load that `penstock simulate` imagines: who comes, when, how often."""

from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.tools.workload.asked import Asked
from penstock.tools.workload.workload import People, Recipe, Workload


@dataclass(frozen=True, slots=True)
class SimulatedLoad(Asked):
    """What is asked of them."""

    rate: float = 8.0
    """Requests a second, over the whole fleet; 0 for all at once"""
    users: int | None = None
    """People instead of a rate: each asks, waits for the answer, thinks for --think-s and asks again"""
    num_requests: int = 2000
    """How many requests come; of a trace, at most the first so many"""
    num_prefixes: int = 1
    """How many common beginnings there are"""
    shared_fraction: float = setting(1.0)
    """Share of the prompts that begin so"""
    sessions: int = setting(0)
    """Sessions that requests belong to, each with a beginning of its own among --num-prefixes (0: one for each conversation)"""
    tenants: str = setting("")
    """Tenants by the share of requests they send, with commas between: 90,5,5; one number alone is that many equal ones"""
    urgent_fraction: float = setting(0.0)
    """Share of the requests with a higher priority"""
    trace: Path | None = None
    """Recorded arrivals to replay instead: Mooncake, Azure, BurstGPT or our own recording"""
    trace_speed: float = setting(1.0)
    """How many times faster than recorded"""
    deadline_s: float | None = setting(None, above=0, most=1e9, unit="seconds")
    """Seconds after its arrival at which an answer is no longer wanted"""

    def workload(self, vocab_size: int, adapters: tuple[float, ...] = ()) -> Workload:
        """`adapters` are the shares of requests that ask for each."""
        if self.trace is not None and (self.turns != 1 or self.users is not None or adapters):
            raise ConfigError("--trace has requests of its own; leave --turns, --users and --adapters")
        if self.trace is not None:
            from penstock.tools.workload.trace_files import read  # numpy: not needed to say what the flags are

            workload = read(self.trace).faster(self.trace_speed).first(self.num_requests).workload(vocab_size)
        elif self.users is not None:
            workload = self.recipe(vocab_size, adapters).of_users(self.users, self.think_s, self.seed)
        else:
            workload = self.recipe(vocab_size, adapters).make(self.seed)
        if self.deadline_s is None:
            return workload
        late = self.deadline_s
        requests = [replace(one, deadline_s=one.arrival_s + late) for one in workload.requests]
        return Workload(requests, workload.later, workload.num_unanswered)

    def recipe(self, vocab_size: int, adapters: tuple[float, ...] = ()) -> Recipe:
        people = People(tenant_shares(self.tenants), self.urgent_fraction, self.sessions, adapters)
        prefix = self.prefix(self.num_prefixes, self.shared_fraction)
        return self.recipe_at(self.rate, self.num_requests, prefix=prefix, vocab_size=vocab_size, people=people)


def tenant_shares(text: str) -> tuple[float, ...]:
    """Shares of the requests that tenants send: `90,5,5`, or `4` for four equal ones."""
    if not text.strip():
        return ()
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"tenants is {text!r}; write shares with commas between, such as 90,5,5, or a number"
        ) from None
    if len(shares) > 1:
        return shares
    if not 1 <= shares[0] <= 10_000 or shares[0] != int(shares[0]):
        raise ConfigError(f"tenants is {text}; choose 1 to 10,000 equal ones, or shares with commas between")
    return (1.0,) * int(shares[0])
