"""What is asked of a deployment: how many requests a second, how long they are, what they share, and when they count as good.

A demand makes the same requests at any rate: only their arrival times are stretched, so that two rates can be compared.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from penstock.errors import ConfigError
from penstock.metrics.summary import Slo, quantile
from penstock.tools.planner.figures import rate_of_users
from penstock.tools.workload.asked import arrivals_of
from penstock.tools.workload.lengths import Lengths
from penstock.tools.workload.trace import Trace
from penstock.tools.workload.workload import Conversation, People, Recipe, SharedPrefix, Workload

SAMPLE = 2000
"""Requests that stand for all in means and quantiles."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Lengths times a factor."""

    inner: Lengths
    factor: float

    def draw(self, random: Random) -> int:
        return max(1, round(self.inner.draw(random) * self.factor))


@dataclass(frozen=True, slots=True)
class Kind:
    """A usual way of using a model: lengths as `workload.lengths` reads them."""

    prompts: str
    answers: str
    shared_prefix: int = 0


KINDS: Mapping[str, Kind] = {
    "chat": Kind("sharegpt-prompts", "sharegpt-answers"),
    "rag": Kind("lognormal:2500:0.5:200-12000", "lognormal:180:0.6:8-1024"),
    "agent": Kind("lognormal:1500:0.9:50-16000", "lognormal:120:0.8:4-1024", shared_prefix=2000),
    "code": Kind("lognormal:900:0.8:50-6000", "lognormal:30:0.7:2-256"),
    "summary": Kind("lognormal:6000:0.5:500-30000", "lognormal:250:0.4:50-1024"),
    "reasoning": Kind("lognormal:150:0.8:10-2048", "lognormal:1500:0.7:50-8192"),
}
"""As people describe such services; a trace of one's own is better."""


@dataclass(frozen=True)
class Demand:
    """`rate` is in requests a second over the whole fleet."""

    rate: float
    prompts: Lengths
    answers: Lengths
    shared_prefix: int = 0
    """Tokens that all prompts begin with, before those of their own."""
    variation: float = 1.0
    """Of the gaps between arrivals: 0 is even, 1 as of independent users, more in bursts."""
    trace: Trace | None = None
    """Recorded requests to use instead of made-up ones, at their own spacing stretched to the rate."""
    seed: int = 0
    conversation: Conversation | None = None
    """Requests are turns of such; those of a conversation follow each other."""
    adapters: tuple[float, ...] = ()
    """Share of the requests that ask for each adapter."""

    def __post_init__(self) -> None:
        if self.trace is not None and self.adapters:
            raise ConfigError("a trace has requests of its own; leave either the trace or the adapters")
        if self.trace is not None and self.conversation is not None:
            raise ConfigError("a trace has requests of its own; leave either the trace or the conversations")
        if not (math.isfinite(self.rate) and 0.0 < self.rate <= 1e6):
            raise ConfigError(f"the load is {self.rate} requests a second; choose a number above 0")
        if not 0 <= self.shared_prefix <= 1_000_000:
            raise ConfigError(f"a shared prefix of {self.shared_prefix} tokens: choose 0 to 1,000,000")

    def workload(self, rate: float, num_requests: int, vocab_size: int) -> Workload:
        """So many requests at a rate."""
        if self.trace is not None:
            part = self.trace.first(num_requests)
            own_rate = len(part) / part.span_s if part.span_s > 0.0 else 1.0
            return part.faster(rate / own_rate).workload(vocab_size)
        return self._recipe(rate, num_requests, vocab_size).make(self.seed)

    @property
    def num_turns(self) -> int:
        return 1 if self.conversation is None else self.conversation.num_turns

    def num_conversations(self, num_requests: int) -> int:
        return max(1, round(num_requests / self.num_turns))

    def _recipe(self, rate: float, num_requests: int, vocab_size: int) -> Recipe:
        begin_rate = rate / self.num_turns
        return Recipe(
            arrivals_of(begin_rate, self.variation),
            self.prompts,
            self.answers,
            self.num_conversations(num_requests),
            SharedPrefix(self.shared_prefix) if self.shared_prefix else None,
            vocab_size,
            self.conversation,
            People(adapters=self.adapters),
        )

    @cached_property
    def sample(self) -> list[tuple[int, int]]:
        """Lengths of prompts, histories included, and of answers: a trace's own, or drawn."""
        if self.trace is not None:
            return list(zip(self.trace.prompt_lengths, self.trace.answer_lengths, strict=True))
        found = []
        for outline in self._recipe(1.0, SAMPLE, 1).outlines(self.seed):
            prompt, answer = self.shared_prefix + outline.num_own, outline.num_answer
            found.append((prompt, answer))
            for num_own, num_answer in outline.later:
                prompt, answer = prompt + answer + num_own, num_answer
                found.append((prompt, answer))
        return found

    @cached_property
    def mean_repeated(self) -> float:
        """Prompt tokens of a request that were sent before: of the shared beginning, or of the conversation so far."""
        if self.num_turns == 1:
            return self.shared_prefix
        pairs = self.sample
        said = [prompt + answer for prompt, answer in pairs]
        firsts = range(0, len(pairs), self.num_turns)
        later = sum(said[number - 1] for number in range(len(pairs)) if number % self.num_turns)
        return (self.shared_prefix * len(firsts) + later) / len(pairs)

    @cached_property
    def sizes(self) -> "Sizes":
        pairs = self.sample
        totals = sorted(prompt + answer for prompt, answer in pairs)
        answers = [answer for _, answer in pairs]
        return Sizes(
            mean_prompt=sum(prompt for prompt, _ in pairs) / len(pairs),
            mean_answer=sum(answers) / len(pairs),
            mean_progress=sum(answer * answer for answer in answers) / (2 * sum(answers)),
            p95_total=quantile(totals, 0.95),
            largest_total=totals[-1],
        )

    def at(self, factor: float) -> "Demand":
        """The same requests at that many times the rate."""
        return replace(self, rate=self.rate * factor)

    def of_users(self, num_users: int, think_s: float, slo: Slo) -> "Demand":
        """The rate at which so many people ask who wait for each answer as long as the SLO allows.

        A fleet that carries it keeps the SLO for all of them: were it slower, they would ask less often.
        """
        if not 1 <= num_users <= 10_000_000:
            raise ConfigError(f"{num_users} users; choose 1 or more")
        allowed_s = response_s(slo, self.sizes.mean_answer)
        if think_s + allowed_s <= 0.0:
            raise ConfigError("users who neither think nor wait ask without end; set --think-s, or times in --slo")
        return replace(self, rate=rate_of_users(num_users, think_s, allowed_s))

    def longer(self, factor: float) -> "Demand":
        """Prompts that many times as long."""
        if self.trace is not None:
            prompts = type(self.trace.prompt_lengths)("q", (round(n * factor) for n in self.trace.prompt_lengths))
            return replace(self, trace=replace(self.trace, prompt_lengths=prompts))
        return replace(self, prompts=Scaled(self.prompts, factor), shared_prefix=round(self.shared_prefix * factor))


def response_s(slo: Slo, num_answer: float) -> float:
    """The longest that an answer of so many tokens may take."""
    parts_s = (slo.ttft_s or 0.0) + (slo.tpot_s or 0.0) * max(0.0, num_answer - 1.0)
    return min(slo.e2e_s, parts_s or slo.e2e_s) if slo.e2e_s is not None else parts_s


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a request."""

    mean_prompt: float
    mean_answer: float
    mean_progress: float
    """Tokens generated so far, of a request met at a random moment: long answers are met more often than short ones."""
    p95_total: float
    largest_total: int

    @property
    def mean_total(self) -> float:
        return self.mean_prompt + self.mean_answer

    @property
    def mean_held(self) -> float:
        """Tokens that a request inside holds in the cache, at a random moment."""
        return self.mean_prompt + self.mean_progress


@dataclass(frozen=True, slots=True)
class SloTarget:
    """When a deployment is good enough: this share of requests meets every time of the SLO."""

    slo: Slo
    fraction: float = 0.95

    def __post_init__(self) -> None:
        if not 0.5 <= self.fraction <= 1.0:
            raise ConfigError(f"{self.fraction} of requests must meet the SLO: choose a share from 0.5 to 1")
