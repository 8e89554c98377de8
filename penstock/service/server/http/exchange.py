"""What is known of one request beside its body: a typed value in its scope, and what a router said of it.

A router gives each request a key of its own. Everything that would be drawn by lot (ids, an unasked seed) follows from it,
and the time is the router's, so that a replica which goes on with an answer says what the first one would have said. `RELAYED`
is set for the task that handles the request.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from penstock.service import kv_events, marks
from penstock.service.edge.stamp import RelayStamp

KEY = "penstock"
MAX_ACCOUNT = 128
MAX_PEER = 320


@dataclass(slots=True)
class ServerExchange:
    """Made when a request arrives, filled by the floors it passes: guard, front, pool, call."""

    name: str = ""
    """As its client knows it: the answer's x-request-id."""
    start_s: float = 0.0
    """When its headers were there."""
    dialect: Any = None
    """How errors and signs of life are worded on its path."""
    send: Any = None
    """Begins its answer early, while its model is being loaded."""
    tenant: str = ""
    is_admin: bool = False
    relayed: "Relayed | None" = None
    """What a router that is believed says of it."""
    read_s: float | None = None
    """When its body was there."""
    model: Any = None
    """The served model that answers."""
    leave: Callable[[], None] | None = None
    """Gives its place back."""
    call: Any = None
    timings: dict[str, float] = field(default_factory=dict)
    fault: Any = None
    """The error it was answered with."""


def exchange_of(scope: Mapping[str, Any]) -> ServerExchange:
    """The exchange of a scope; a scope that did not pass the guard has an empty one."""
    found = scope.get(KEY)
    if isinstance(found, ServerExchange):
        return found
    made = ServerExchange()
    if isinstance(scope, dict):
        scope[KEY] = made
    return made


@dataclass(slots=True)
class Relayed:
    """What the router said."""

    key: bytes
    created: int
    priority: int
    resumed: dict[int, list[int]] | None = None
    """Tokens by choice that the client has seen; None where the answer begins here."""
    most: marks.TokenBound | None = None
    """Tokens that a gateway set money aside for."""
    account: str = ""
    """What the gateway calls the request."""
    count: marks.TokenCount | None = None
    """Tokens that an answer took which is no generation."""
    asks_blocks: bool = False
    """It is only asked what blocks the prompt is made of."""
    only_prefills: bool = False
    """The prompt is to be computed for another replica, and nothing to be answered."""
    peer: str = ""
    """Another replica that has blocks of the prompt, or computes them."""
    _num_drawn: int = field(default=0)

    def draw(self, num_bytes: int) -> bytes:
        """Bytes that look random, the same in the same order on every replica."""
        self._num_drawn += 1
        return blake2b(b"%b %d" % (self.key, self._num_drawn), digest_size=num_bytes, person=b"penstock.relay").digest()


RELAYED: ContextVar[Relayed | None] = ContextVar("relayed", default=None)


def relayed_by(stamp: RelayStamp, headers: Mapping[bytes, bytes]) -> Relayed:
    """What a router says of a request in its headers, its stamp among them."""
    return Relayed(
        stamp.key,
        stamp.created,
        stamp.priority,
        most=marks.bound_of(headers.get(marks.MOST_HEADER, b"")),
        account=headers.get(marks.ACCOUNT_HEADER, b"")[:MAX_ACCOUNT].decode("latin-1"),
        asks_blocks=kv_events.BLOCKS_HEADER in headers,
        only_prefills=kv_events.PREFILL_HEADER in headers,
        peer=headers.get(kv_events.PEER_HEADER, b"")[:MAX_PEER].decode("latin-1"),
    )


def random_hex() -> str:
    """Of ids: drawn by lot, or following from a router's key."""
    relayed = RELAYED.get()
    return secrets.token_hex(12) if relayed is None else relayed.draw(12).hex()


def random_seed() -> int:
    relayed = RELAYED.get()
    return secrets.randbits(63) if relayed is None else int.from_bytes(relayed.draw(8), "little") >> 1


def unix_time() -> int:
    relayed = RELAYED.get()
    return int(time.time()) if relayed is None else relayed.created
