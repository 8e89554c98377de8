"""How much a tenant may ask in a minute, in a day and at once. Pure: told the time.

Requests are counted when they come. Tokens are taken in advance by what a request may use at most, and given back when it is
known what it did use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from penstock.errors import ConfigError, PenstockError

MINUTE_S = 60.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Tier:
    """What a tenant may have; None is without bound."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    """Requests at once."""
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    priority: int = 0
    """Larger goes first at the engines, and is shed last."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{field.name} of a tier is {value!r}; write a whole number")
            if value is not None and value < 1 and field.name != "priority":
                raise ConfigError(f"{field.name} of a tier is {value}; choose 1 or more, or leave it out")


class Bucket:
    """Holds so many at most, filled evenly over the period."""

    __slots__ = ("_level", "_seen_s", "period_s", "size")

    def __init__(self, size: int, period_s: float, now: float) -> None:
        self.size = size
        self.period_s = period_s
        self._level = float(size)
        self._seen_s = now

    def level(self, now: float) -> float:
        if now > self._seen_s:
            self._level = min(self._level + (now - self._seen_s) * self.size / self.period_s, float(self.size))
            self._seen_s = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """May go below zero: what was used is used."""
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Until so many are there, 0 if they are; what can never be there waits for a full bucket."""
        missing = min(amount, self.size) - self.level(now)
        return max(missing, 0.0) * self.period_s / self.size


class Denied(PenstockError):
    """A request may not go on: whose rule it was, and when to come back."""

    def __init__(
        self, kind: str, message: str, wait_s: float = 0.0, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """requests, tokens, concurrency, budget, price, model, scope, context, shed or store"""
        self.wait_s = wait_s
        self.headers = tuple(headers)


class Meter:
    """One tenant's use of its tier."""

    def __init__(self, tier: Tier, now: float) -> None:
        self.num_open = 0
        self.change(tier, now)

    def change(self, tier: Tier, now: float) -> None:
        """Another tier from now on, unused so far."""
        self.tier = tier
        kinds = (
            ("requests", tier.requests_per_minute, MINUTE_S, "a minute"),
            ("requests", tier.requests_per_day, DAY_S, "a day"),
            ("tokens", tier.tokens_per_minute, MINUTE_S, "a minute"),
            ("tokens", tier.tokens_per_day, DAY_S, "a day"),
        )
        self._buckets = [
            (what, Bucket(size, period, now), per) for what, size, period, per in kinds if size is not None
        ]

    def begin(self, num_tokens: int, now: float) -> None:
        """Count a request in. Raises Denied, and then nothing is counted."""
        tier = self.tier
        if tier.concurrency is not None and self.num_open >= tier.concurrency:
            message = f"{self.num_open} requests are open, as many as this key's tier may have; try later"
            raise Denied("concurrency", message, 1.0, self.headers(now))
        for what, bucket, per in self._buckets:
            amount = 1 if what == "requests" else num_tokens
            if what == "tokens" and amount > bucket.size:
                message = f"the request may take {amount:,} tokens and the tier has {bucket.size:,} {per}; ask for less"
                raise Denied(what, message, 0.0, self.headers(now))
            wait_s = bucket.wait_s(amount, now)
            if wait_s > 0.0:
                message = f"this tier's {bucket.size:,} {what} {per} are used up; try later"
                raise Denied(what, message, wait_s, self.headers(now))
        for what, bucket, _ in self._buckets:
            bucket.take(1 if what == "requests" else num_tokens, now)
        self.num_open += 1

    def end(self, num_reserved: int, num_used: int, now: float) -> None:
        """It is over: only what it used stays counted."""
        self.num_open -= 1
        self.charge(num_used - num_reserved, now)

    def charge(self, num_tokens: int, now: float) -> None:
        """Tokens made after their request was over, or beyond what it was taken for."""
        for what, bucket, _ in self._buckets:
            if what == "tokens":
                bucket.take(num_tokens, now)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """As OpenAI's clients read them, of the shortest period."""
        pairs: list[tuple[bytes, bytes]] = []
        for what, bucket in {what: bucket for what, bucket, _ in reversed(self._buckets)}.items():
            word = what.encode()
            pairs += [
                (b"x-ratelimit-limit-%b" % word, b"%d" % bucket.size),
                (b"x-ratelimit-remaining-%b" % word, b"%d" % max(math.floor(bucket.level(now)), 0)),
                (b"x-ratelimit-reset-%b" % word, b"%.3fs" % bucket.wait_s(bucket.size, now)),
            ]
        return pairs
