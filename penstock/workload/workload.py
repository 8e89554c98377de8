"""A workload: requests with their arrival times and the lengths of their answers, made from a seed.

An answer's length is its `max_tokens` with end-of-text ignored, so that engine, bench and simulator generate the same tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from penstock.core.request import Request, SamplingParams
from penstock.errors import ConfigError
from penstock.workload.arrivals import Arrivals
from penstock.workload.lengths import Lengths


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
    """A later turn of a conversation, which is said `think_s` after the answer before it."""

    own: tuple[int, ...]
    """Tokens of the turn itself, after its history."""
    num_answer: int
    think_s: float

    def after(self, earlier: Request, answer: Sequence[int], request_id: int, arrival_s: float) -> Request:
        late_s = None if earlier.deadline_s is None else earlier.deadline_s - earlier.arrival_s
        return replace(
            earlier,
            request_id=request_id,
            prompt=(*earlier.prompt, *answer, *self.own),
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
                length, answer = length + answer + len(turn.own), turn.num_answer
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a workload."""

    arrivals: Arrivals
    prompts: Lengths
    """Of the part that is a prompt's own; a shared prefix comes on top."""
    answers: Lengths
    num_requests: int = 1000
    """With a conversation: how many of them."""
    prefix: SharedPrefix | None = None
    vocab_size: int = 32_000
    conversation: Conversation | None = None
    """Further turns are drawn from the same lengths."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_requests <= 10_000_000:
            raise ConfigError(f"{self.num_requests} requests: choose 1 to 10,000,000")
        if not 1 <= self.vocab_size <= 2**31:
            raise ConfigError(f"a vocabulary of {self.vocab_size}: choose 1 or more")

    def make(self, seed: int) -> Workload:
        """The same seed gives the same workload. Times, lengths and tokens are drawn apart: changing one leaves the others."""
        prefixes = self._shared_prefixes(Random(f"{seed} prefixes"))
        return self._make(seed, prefixes, Random(f"{seed} tokens"))

    def make_fresh(self, seed: int, nonce: str) -> Workload:
        """The times and lengths of `make` with tokens that no cache has seen, unless it has seen this nonce."""
        random = Random(f"{seed} tokens {nonce}")
        return self._make(seed, self._shared_prefixes(random), random)

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
                Request(request_id=number, prompt=(*start, *own), params=params, arrival_s=outline.arrival_s)
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
        prefix_random = Random(f"{seed} prefixes")
        self._shared_prefixes(prefix_random)  # drawn before from the same numbers
        turn_random = Random(f"{seed} turns")
        num_later = self.conversation.num_turns - 1 if self.conversation else 0
        for arrival_s in times:
            prefix = None
            if self.prefix and prefix_random.random() < self.prefix.fraction:
                prefix = prefix_random.choice(range(self.prefix.num_prefixes))
            own, answer = self.prompts.draw(prompt_random), self.answers.draw(answer_random)
            later = [(self.prompts.draw(turn_random), self.answers.draw(turn_random)) for _ in range(num_later)]
            yield Outline(arrival_s, prefix, own, answer, tuple(later))

    def _shared_prefixes(self, random: Random) -> list[tuple[int, ...]]:
        if self.prefix is None:
            return []
        tokens, length = range(self.vocab_size), self.prefix.num_tokens
        return [tuple(random.choices(tokens, k=length)) for _ in range(self.prefix.num_prefixes)]
