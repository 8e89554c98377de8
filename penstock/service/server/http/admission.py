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

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.engine.client import DeltaStream, EngineClient, Facts
from penstock.service.edge.access import ROUTER
from penstock.service.server.http.faults import ApiError, Headers, busy

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

    @property
    def num_waiting(self) -> int:
        """Requests not started yet, those on the way to the engine included."""
        return len(self.waiting)

    def position(self, stream: DeltaStream) -> int:
        """Position among requests not started yet, 1 for the next."""
        return next((place for place, one in enumerate(self.waiting, 1) if one is stream), 0)

    @property
    def waiting(self) -> list[DeltaStream]:
        """Requests not started yet, in order. Batch requests come after all others and delay none."""
        return [one for one in self._client.streams if not one.is_started and not one.request.is_batch]

    def eta_s(self, position: int) -> float | None:
        """When that place comes up, as things have been going; None if nothing has moved lately."""
        each_s = self.drain.seconds_each(time.monotonic())
        return None if each_s is None else round(position * each_s, 1)

    def retry_after_s(self) -> int:
        eta_s = self.eta_s(self.num_waiting)
        return 1 if eta_s is None else max(1, min(math.ceil(eta_s), MOST_S))

    @property
    def num_sequences(self) -> int:
        """Sequences of all requests that have not ended, running or waiting; batch requests are in nobody's way."""
        return sum([one.request.params.n for one in self._client.streams if not one.request.is_batch])

    def check(self, tenant: str) -> None:
        """Raise the error that says when to come back if there is no place now."""
        facts = self._client.facts
        if facts is None:
            raise busy("the model is being loaded; try again in a moment", 1, code="model_loading")
        num_taken, capacity = max(self.num_open, self.num_sequences), _capacity(facts)
        if num_taken >= capacity or self._is_shed(num_taken, capacity):
            raise self._full(tenant)
        if self._open[tenant] >= self._share(capacity, tenant):
            self.num_refused += 1
            message = "this key has as many requests as it may; try later"
            raise busy(message, self.retry_after_s(), is_tenant=True, headers=self.limits(tenant))

    def _is_shed(self, num_taken: int, capacity: int) -> bool:
        """Chance says no, so that a queue that fills is told to clients one by one before it is full for all of them."""
        if capacity < SHED_PLACES or num_taken <= SHED_FROM * capacity:
            return False
        return self._chance() < (num_taken / capacity - SHED_FROM) / (1.0 - SHED_FROM)

    @property
    def num_asked_tokens(self) -> int:
        """Places in the KV cache that all open requests hold or will come to need."""
        requests = [one.request for one in self._client.streams if not one.request.is_batch]
        return sum(_needed((request.prompt,), request.params) for request in requests)

    def enter(self, tenant: str) -> None:
        """Take a place, or raise as `check` does. Every `enter` needs its `leave`."""
        self.check(tenant)
        if not self.waiting:
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
        num_tokens, num_waiting = sum(map(len, prompts)), _num_tokens(self.waiting)
        if self.num_sequences + len(prompts) * params.n > _capacity(facts):
            raise self._full(tenant)
        if num_waiting and num_waiting + num_tokens > facts.max_waiting_tokens:
            raise self._full(tenant, f"{num_waiting:,} prompt tokens wait")
        if (
            num_waiting
            and self.num_asked_tokens + _needed(prompts, params) > CACHE_TURNS * facts.num_blocks * facts.block_size
        ):
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
        capacity, waiting = _capacity(facts), self.waiting
        share = self._share(capacity, tenant)
        room = min(share - self._open[tenant], capacity - self.num_open)
        reset = _duration(self.eta_s(len(waiting)) or 0.0)
        reported = {
            "limit-requests": share,
            "remaining-requests": max(room, 0),
            "reset-requests": reset,
            "limit-tokens": facts.max_waiting_tokens,
            "remaining-tokens": max(facts.max_waiting_tokens - _num_tokens(waiting), 0),
            "reset-tokens": reset,
        }
        return tuple([(f"x-ratelimit-{name}".encode(), str(value).encode()) for name, value in reported.items()])

    def _share(self, capacity: int, tenant: str) -> int:
        """Calls that one key may have open; a router that tells nobody apart asks for all of its clients."""
        return max(capacity // 2, 1) if self._has_several and tenant != ROUTER else capacity


def _num_tokens(streams: Sequence[DeltaStream]) -> int:
    """Of their prompts."""
    return sum([len(stream.request.prompt) for stream in streams])


def _needed(prompts: Sequence[Sequence[int]], params: SamplingParams) -> int:
    answer = EXPECTED_ANSWER if params.max_tokens is None else min(params.max_tokens, EXPECTED_ANSWER)
    return sum(map(len, prompts)) + len(prompts) * params.n * answer


def _capacity(facts: Facts) -> int:
    return facts.max_waiting + facts.max_sequences


def _duration(seconds: float) -> str:
    """As clients parse it: 120ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:g}s"
