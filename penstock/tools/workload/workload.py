"""A workload: requests with their arrival times and the lengths of their answers, made from a seed.

An answer's length is its `max_tokens` with end-of-text ignored, so that engine, bench and simulator generate the same tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.fields import Checked, check, leaf
from penstock.runtime.core.request import Request, SamplingParams
from penstock.tools.workload.arrivals import Arrivals
from penstock.tools.workload.lengths import Lengths

ANSWERED = 0
"""The token that a simulated model always draws: what answers consist of where later prompts repeat them."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Some prompts begin with one of a few long texts: system prompts, documents, examples."""

    num_tokens: int
    num_prefixes: int = 1
    fraction: float = 1.0
    """Share of requests that begin so."""

    def __post_init__(self) -> None:
        if not (1 <= self.num_tokens <= 10_000_000 and 1 <= self.num_prefixes <= 1_000_000):
            raise ConfigError(
                f"{self.num_prefixes} shared prefixes of {self.num_tokens} tokens: choose at least one of at least one token"
            )
        if not 0.0 <= self.fraction <= 1.0:
            raise ConfigError(f"the share of requests with a shared prefix is {self.fraction}; choose 0 to 1")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests are the first of several turns, each with all before it as its history."""

    num_turns: int
    think_s: float = 0.0
    """Between an answer and the next turn."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_turns <= 1000:
            raise ConfigError(f"conversations of {self.num_turns} turns: choose 1 to 1000")
        if not (math.isfinite(self.think_s) and 0.0 <= self.think_s <= 1e6):
            raise ConfigError(f"{self.think_s} seconds between turns: choose 0 or more")


class FollowUp(NamedTuple):
    """A later turn of a conversation, or the next one of the same user, which is said `think_s` after the answer before it."""

    own: tuple[int, ...]
    """Tokens of the turn itself, after its history."""
    num_answer: int
    think_s: float
    keeps_history: bool = True
    """False begins a new conversation."""

    def after(self, earlier: Request, answer: Sequence[int], request_id: int, arrival_s: float) -> Request:
        late_s = None if earlier.deadline_s is None else earlier.deadline_s - earlier.arrival_s
        return replace(
            earlier,
            request_id=request_id,
            prompt=(*earlier.prompt, *answer, *self.own) if self.keeps_history else self.own,
            params=replace(earlier.params, max_tokens=self.num_answer),
            arrival_s=arrival_s,
            deadline_s=None if late_s is None else arrival_s + late_s,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. They may be made only when they are asked for (`trace`): go through them in order."""

    requests: Sequence[Request]
    later: Mapping[int, Sequence[FollowUp]] = field(default_factory=dict)
    """Further turns of the conversation that a request begins, by its id."""
    num_unanswered: int = 0
    """Requests of a recording that got no answer then, and are left out."""

    def __post_init__(self) -> None:
        times = [request.arrival_s for request in self.requests]
        if times != sorted(times):
            raise ConfigError("the requests of a workload must be in order of arrival; sort them by arrival_s")
        if len({request.request_id for request in self.requests}) != len(self.requests):
            raise ConfigError("two requests of a workload have the same request_id; number them apart")

    def __len__(self) -> int:
        return len(self.requests) + sum(map(len, self.later.values()))

    @property
    def num_prompt_tokens(self) -> int:
        """Histories included."""
        total = 0
        for request in self.requests:
            length, answer = len(request.prompt), request.params.max_tokens or 0
            total += length
            for turn in self.later.get(request.request_id, ()):
                history = length + answer if turn.keeps_history else 0
                length, answer = history + len(turn.own), turn.num_answer
                total += length
        return total

    @property
    def num_output_tokens(self) -> int:
        first = sum(request.params.max_tokens or 0 for request in self.requests)
        return first + sum(turn.num_answer for turns in self.later.values() for turn in turns)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last; later turns come after that."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s if self.requests else 0.0


class Outline(NamedTuple):
    """A request before its tokens are drawn."""

    arrival_s: float
    prefix: int | None
    """Number of the shared prefix it begins with."""
    num_own: int
    """Prompt tokens after the prefix."""
    num_answer: int
    later: tuple[tuple[int, int], ...] = ()
    """Of each further turn, its own tokens and those of its answer."""
    session: int | None = None
    tenant: str = ""
    priority: int = 0
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class People:
    """Who asks. What is not set makes no difference between requests."""

    tenants: tuple[float, ...] = ()
    """Share of the requests that each tenant sends; they need not add up to 1."""
    urgent_fraction: float = leaf(0.0, 0, 1)
    """Share of the requests with priority 1; the others have 0."""
    num_sessions: int = leaf(0, 0, 10_000_000)
    """Sessions that requests belong to; those of one begin with the same shared prefix. 0: one for each conversation."""
    adapters: tuple[float, ...] = ()
    """Share of the requests that ask for each adapter; none asks for one if there are none."""

    def __post_init__(self) -> None:
        if any(not 0.0 < share < math.inf for share in self.tenants) or len(self.tenants) > 10_000:
            raise ConfigError(f"tenants send {self.tenants} of the requests; choose numbers above 0, one a tenant")
        check(self)

    def tenant(self, random: Random) -> str:
        if not self.tenants:
            return ""
        (number,) = random.choices(range(len(self.tenants)), self.tenants)
        return f"tenant {number + 1}"

    def chosen(self, count: int, random: Random) -> list[str]:
        """Adapters of so many requests."""
        if not self.adapters:
            return [""] * count
        return [f"adapter {number}" for number in random.choices(range(len(self.adapters)), self.adapters, k=count)]


@dataclass(frozen=True, slots=True)
class Recipe(Checked):
    """How to make a workload."""

    arrivals: Arrivals
    prompts: Lengths
    """Of the part that is a prompt's own; a shared prefix comes on top."""
    answers: Lengths
    num_requests: int = leaf(1000, 1, 10_000_000)
    """With a conversation: how many of them."""
    prefix: SharedPrefix | None = None
    vocab_size: int = leaf(32_000, 1, 2**31)
    conversation: Conversation | None = None
    """Further turns are drawn from the same lengths."""
    people: People = field(default_factory=People)

    def make(self, seed: int) -> Workload:
        """The same seed gives the same workload. Times, lengths and tokens are drawn apart: changing one leaves the others."""
        prefixes = self._shared_prefixes(Random(f"{seed} prefixes"))
        return self._make(seed, prefixes, Random(f"{seed} tokens"))

    def make_fresh(self, seed: int, nonce: str) -> Workload:
        """The times and lengths of `make` with tokens that no cache has seen, unless it has seen this nonce."""
        random = Random(f"{seed} tokens {nonce}")
        return self._make(seed, self._shared_prefixes(random), random)

    def of_users(self, num_users: int, think_s: float, seed: int) -> Workload:
        """The requests of `make`, asked by so many people in turn: each waits for the answer, thinks, and asks the next.

        They come within the first `think_s`. What a user asks next begins a new conversation.
        """
        if not 1 <= num_users <= 1_000_000 or not 0.0 <= think_s <= 1e6:
            raise ConfigError(
                f"{num_users} users who think for {think_s} s: choose at least one, and 0 seconds or more"
            )
        whole = self.make(seed)
        random = Random(f"{seed} users")
        num_users = min(num_users, len(whole.requests))
        starts = sorted(random.uniform(0.0, think_s) for _ in range(num_users))
        firsts: list[Request] = []
        later: dict[int, tuple[FollowUp, ...]] = {}
        for number, start_s in enumerate(starts):
            chain: list[FollowUp] = []
            for request in whole.requests[number::num_users]:
                num_answer = request.params.max_tokens or 1
                chain.append(FollowUp(request.prompt, num_answer, think_s, keeps_history=False))
                chain += whole.later.get(request.request_id, ())
            first = whole.requests[number]
            firsts.append(replace(first, arrival_s=start_s, session=f"user {number}"))
            later[first.request_id] = tuple(chain[1:])
        return Workload(tuple(firsts), {name: turns for name, turns in later.items() if turns})

    def _make(self, seed: int, shared: list[tuple[int, ...]], token_random: Random) -> Workload:
        tokens = range(self.vocab_size)
        requests = []
        later: dict[int, tuple[FollowUp, ...]] = {}
        think_s = self.conversation.think_s if self.conversation else 0.0
        for number, outline in enumerate(self.outlines(seed)):
            start = () if outline.prefix is None else shared[outline.prefix]
            own = token_random.choices(tokens, k=outline.num_own)
            params = SamplingParams(max_tokens=outline.num_answer, ignore_eos=True, temperature=0.0)
            requests.append(
                Request(
                    request_id=number,
                    prompt=(*start, *own),
                    params=params,
                    arrival_s=outline.arrival_s,
                    priority=outline.priority,
                    tenant=outline.tenant,
                    session="" if outline.session is None else f"session {outline.session}",
                    adapter=outline.adapter,
                )
            )
            if outline.later:
                later[number] = tuple(
                    FollowUp(tuple(token_random.choices(tokens, k=num_own)), num_answer, think_s)
                    for num_own, num_answer in outline.later
                )
        return Workload(tuple(requests), later)

    def outlines(self, seed: int) -> Iterator[Outline]:
        """The requests of `make` without their tokens, for those who make words of their own."""
        times = self.arrivals.times(self.num_requests, Random(f"{seed} arrivals"))
        prompt_random, answer_random = Random(f"{seed} prompts"), Random(f"{seed} answers")
        prefix_random, people_random = Random(f"{seed} prefixes"), Random(f"{seed} people")
        self._shared_prefixes(prefix_random)  # drawn before from the same numbers
        turn_random = Random(f"{seed} turns")
        num_later = self.conversation.num_turns - 1 if self.conversation else 0
        people = self.people
        adapters = people.chosen(self.num_requests, Random(f"{seed} adapters"))
        for number, (arrival_s, adapter) in enumerate(zip(times, adapters)):
            prefix = None
            if self.prefix and prefix_random.random() < self.prefix.fraction:
                prefix = prefix_random.choice(range(self.prefix.num_prefixes))
            session = number if num_later else None
            if people.num_sessions:
                session = people_random.randrange(people.num_sessions)
                if prefix is not None and self.prefix:
                    prefix = session % self.prefix.num_prefixes
            own, answer = self.prompts.draw(prompt_random), self.answers.draw(answer_random)
            later = [(self.prompts.draw(turn_random), self.answers.draw(turn_random)) for _ in range(num_later)]
            tenant = people.tenant(people_random)
            priority = int(people.urgent_fraction > 0.0 and people_random.random() < people.urgent_fraction)
            yield Outline(arrival_s, prefix, own, answer, tuple(later), session, tenant, priority, adapter)

    def _shared_prefixes(self, random: Random) -> list[tuple[int, ...]]:
        if self.prefix is None:
            return []
        tokens, length = range(self.vocab_size), self.prefix.num_tokens
        return [tuple(random.choices(tokens, k=length)) for _ in range(self.prefix.num_prefixes)]
