"""Who may come in: decided from what this server has open itself, before the first byte of an answer.

`check` refuses before a body is read, `enter` takes a place once it is there, `reserve` looks at the prompts once they are
tokens. What the engine last reported is never asked: it is older than what was let in since. Beside the engine's own bounds,
which hold in any case, this says when to come back: the number waiting divided by how many a second have been leaving the
queue lately.
"""

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.engine.client import DeltaStream, EngineClient, Facts
from penstock.service.edge.access import ROUTER
from penstock.service.server.http.faults import ApiError, Headers, busy, loading

SHED_FROM = 0.8
"""Share of the places that are taken before some are refused by chance: more, the fuller it is, all when nothing is free."""
SHED_PLACES = 50
"""Fewer places than this are filled to the last: chance needs numbers."""
CACHE_TURNS = 8
"""How many times what the cache holds may be asked for by all that is open, before more is refused."""
EXPECTED_ANSWER = 512
"""Tokens that an answer is taken to need where more, or no number, is allowed."""
WINDOW_S = 30.0
"""Long enough for some answers of a batch that begins and ends together, which would look like a rush and a standstill."""
MOST_S = 120
"""Clients ignore longer waits."""


class DrainRate:
    """Requests that began to be answered, a second, over the last half minute; and how long none has."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque()
        self._moved_s = math.inf
        """When a request last began, or came while none waited."""

    def add(self, now: float) -> None:
        self._starts.append(now)
        self._moved_s = now
        self._forget(now)

    def rest(self, now: float) -> None:
        """None waits: a queue that grows from here on has stood for no longer."""
        self._moved_s = now

    def per_s(self, now: float) -> float:
        self._forget(now)
        if not self._starts:
            return 0.0
        return len(self._starts) / min(max(now - self._starts[0], 0.1), WINDOW_S)

    def seconds_each(self, now: float) -> float | None:
        """Time until the next request begins, as things have been going; a queue that stands takes as long again."""
        if rate := self.per_s(now):
            return 1.0 / rate
        standing_s = now - self._moved_s
        return standing_s if standing_s > WINDOW_S else None

    def _forget(self, now: float) -> None:
        while self._starts and self._starts[0] < now - WINDOW_S:
            self._starts.popleft()


class Crowd(NamedTuple):
    """The requests that have not ended. Batch requests are in nobody's way: they come after all others and delay none."""

    num_sequences: int
    """Running or waiting."""
    waiting: list[DeltaStream]
    """Requests not started yet, on their way to the engine included, in order."""
    num_tokens: int
    """Of the prompts that wait."""


class Admission:
    """Of several tenants none may fill more than half of the queue. A router's, and those of signed tokens, are several once a
    second one has come: one alone has everything."""

    def __init__(self, client: EngineClient, *, num_tenants: int, chance: Callable[[], float] = random.random) -> None:
        """`num_tenants` have keys of this server's own."""
        self._chance = chance
        self.drain = DrainRate()
        self.num_refused = 0
        self._client = client
        self._has_several = num_tenants > 1
        self._only: str | None = None
        """The tenant that came first."""
        self._open: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Calls admitted and not over."""
        return self._open.total()

    def position(self, stream: DeltaStream) -> int:
        """Position among requests not started yet, 1 for the next."""
        return next((place for place, one in enumerate(self._crowd().waiting, 1) if one is stream), 0)

    def _crowd(self) -> Crowd:
        num_sequences = num_tokens = 0
        waiting = []
        for stream in self._client.streams:
            request = stream.request
            if not request.is_batch:
                num_sequences += request.params.n
                if not stream.is_started:
                    waiting.append(stream)
                    num_tokens += len(request.prompt)
        return Crowd(num_sequences, waiting, num_tokens)

    def eta_s(self, position: int) -> float | None:
        """When that place comes up, as things have been going; None if nothing has moved lately."""
        each_s = self.drain.seconds_each(time.monotonic())
        return None if each_s is None else round(position * each_s, 1)

    def retry_after_s(self) -> int:
        eta_s = self.eta_s(len(self._crowd().waiting))
        return 1 if eta_s is None else max(1, min(math.ceil(eta_s), MOST_S))

    def check(self, tenant: str) -> None:
        """Raise the error that says when to come back if there is no place now."""
        self._check(tenant, self._crowd())

    def _check(self, tenant: str, crowd: Crowd) -> None:
        if self._client.facts is None:
            raise loading()
        capacity, share = self._places(self._client.facts, tenant)
        num_taken = max(self._open.total(), crowd.num_sequences)
        # A queue that fills is told to clients one by one, by chance, before it is full for all of them.
        excess = (num_taken / capacity - SHED_FROM) / (1.0 - SHED_FROM)
        if num_taken >= capacity or (capacity >= SHED_PLACES and self._chance() < excess):
            raise self._full(tenant)
        if self._open[tenant] >= share:
            self.num_refused += 1
            message = "this key has as many requests as it may; try later"
            raise busy(message, self.retry_after_s(), is_tenant=True, headers=self.limits(tenant))

    @property
    def num_asked_tokens(self) -> int:
        """Places in the KV cache that all open requests hold or will come to need."""
        requests = [one.request for one in self._client.streams if not one.request.is_batch]
        return sum(_needed((request.prompt,), request.params) for request in requests)

    def enter(self, tenant: str) -> None:
        """Take a place, or raise as `check` does. Every `enter` needs its `leave`."""
        crowd = self._crowd()
        self._check(tenant, crowd)
        if not crowd.waiting:
            self.drain.rest(time.monotonic())
        self._open[tenant] += 1
        if tenant != ROUTER:
            self._only = tenant if self._only is None else self._only
            self._has_several = self._has_several or tenant != self._only

    def reserve(self, prompts: Sequence[tuple[int, ...]], params: SamplingParams, tenant: str) -> None:
        """Raise the error that says when to come back if so many sequences, or so long prompts, have no place now."""
        facts = self._client.facts
        if facts is None:
            return
        crowd = self._crowd()
        if crowd.num_sequences + len(prompts) * params.n > self._places(facts, tenant)[0]:
            raise self._full(tenant)
        if not crowd.num_tokens:
            return
        if crowd.num_tokens + sum(map(len, prompts)) > facts.max_waiting_tokens:
            raise self._full(tenant, f"{crowd.num_tokens:,} prompt tokens wait")
        if self.num_asked_tokens + _needed(prompts, params) > CACHE_TURNS * facts.num_blocks * facts.block_size:
            raise self._full(tenant, f"the KV cache is asked for {CACHE_TURNS} times over")

    def _full(self, tenant: str, reason: str = "") -> ApiError:
        self.num_refused += 1
        reason = reason and f", and {reason}"
        message = f"{self.num_open:,} requests are being served or wait{reason}; try later"
        return busy(message, self.retry_after_s(), headers=self.limits(tenant))

    def leave(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def limits(self, tenant: str) -> Headers:
        """What this key may still send now, and when all that waits will have begun, in the headers clients look for."""
        facts = self._client.facts
        if facts is None:
            return ()
        crowd = self._crowd()
        capacity, share = self._places(facts, tenant)
        room = min(share - self._open[tenant], capacity - self._open.total())
        reset = _duration(self.eta_s(len(crowd.waiting)) or 0.0)
        reported = {
            "limit-requests": share,
            "remaining-requests": max(room, 0),
            "reset-requests": reset,
            "limit-tokens": facts.max_waiting_tokens,
            "remaining-tokens": max(facts.max_waiting_tokens - crowd.num_tokens, 0),
            "reset-tokens": reset,
        }
        return tuple([(f"x-ratelimit-{name}".encode(), str(value).encode()) for name, value in reported.items()])

    def _places(self, facts: Facts, tenant: str) -> tuple[int, int]:
        """Calls that all together may have open, and one key; a router that tells nobody apart asks for all of its clients."""
        capacity = facts.max_waiting + facts.max_sequences
        return capacity, max(capacity // 2, 1) if self._has_several and tenant != ROUTER else capacity


def _needed(prompts: Sequence[Sequence[int]], params: SamplingParams) -> int:
    answer = EXPECTED_ANSWER if params.max_tokens is None else min(params.max_tokens, EXPECTED_ANSWER)
    return sum(map(len, prompts)) + len(prompts) * params.n * answer


def _duration(seconds: float) -> str:
    """As clients parse it: 120ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:g}s"
