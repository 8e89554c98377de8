"""A request that came through a router: what follows from its key, and an answer that another replica began.

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

from starlette.requests import Request

from penstock.service import kv_events, marks
from penstock.service.edge.stamp import RelayStamp
from penstock.service.server.http.call import Call
from penstock.service.server.http.faults import invalid

MAX_RESUME_BYTES = 4 << 20
MAX_ACCOUNT = 128
MAX_PEER = 320


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


def split_body(request: Request, body: bytes) -> tuple[bytes, dict[int, list[int]] | None]:
    """The client's own body, and the tokens its answer goes on after."""
    size = request.headers.get(marks.RESUME_HEADER.decode())
    if size is None:
        return body, None
    if not size.isdecimal() or len(size) > 9 or int(size) > min(len(body), MAX_RESUME_BYTES):
        raise invalid("the answer to go on with is not as long as was said", code="invalid_resume")
    try:
        return body[int(size) :], marks.resumed_tokens(body[: int(size)])
    except ValueError:
        raise invalid("the answer to go on with is no list of tokens", code="invalid_resume") from None


def check_resumed(tokens: dict[int, list[int]], num_choices: int, vocab_size: int, max_context: int) -> None:
    """Raises the error of a client where no engine of ours can have drawn these tokens."""
    for choice, ids in tokens.items():
        if choice >= num_choices or len(ids) >= max_context or max(ids) >= vocab_size:
            raise invalid("the answer to go on with is none of this model's", code="invalid_resume")


def random_hex(num_bytes: int = 12) -> str:
    """Of ids: drawn by lot, or following from a router's key."""
    relayed = RELAYED.get()
    return secrets.token_hex(num_bytes) if relayed is None else relayed.draw(num_bytes).hex()


def random_seed() -> int:
    relayed = RELAYED.get()
    return secrets.randbits(63) if relayed is None else int.from_bytes(relayed.draw(8), "little") >> 1


def unix_time() -> int:
    relayed = RELAYED.get()
    return int(time.time()) if relayed is None else relayed.created


class Marker:
    """Ends the writes of one stream in marks: which tokens have been taken in since the last."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._counts = [len(writer.token_ids) for writer in call.writers]

    def mark(self) -> bytes:
        tokens = []
        for index, writer in enumerate(self._call.writers):
            count = self._counts[index]
            if len(writer.token_ids) > count:
                tokens.append((index, writer.token_ids[count:]))
                self._counts[index] = len(writer.token_ids)
        return marks.mark_of(tokens)

    def marked(self, write: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda *arguments: write(*arguments) + self.mark()
