"""What a relay asks of its maker: the router, as one request sees it."""

from typing import Any, Protocol

from penstock.service.config import RouterConfig
from penstock.service.marks import TokenBound
from penstock.service.router.fleet import LiveFleet, LiveReplica
from penstock.service.router.members import Members
from penstock.service.router.meters import RouterMeters
from penstock.service.router.proxy.job import RelayOutcome


class RelayHost(Protocol):
    """`relay` is the relay that asks."""

    fleet: LiveFleet
    meters: RouterMeters
    config: RouterConfig
    is_metered: bool
    members: Members

    def now(self) -> float: ...

    def choose(self, relay: Any) -> LiveReplica: ...

    def park(self, relay: Any) -> None: ...

    def may_retry(self) -> bool: ...

    def note_failure(self, replica: LiveReplica, message: str, *, is_gone: bool) -> None: ...

    def answer_headers(self, relay: Any) -> bytes: ...

    def asks_more(self, relay: Any, needs: TokenBound) -> bool:
        """It may take more than money was set aside for: the relay is started again, or refused. False if it stays refused."""

    def learn_ids(self, relay: Any, answer: bytes) -> None:
        """The replica that answers keeps what it names there."""

    def overflow(self, relay: Any) -> None:
        """Turn to the next model at once where the present one has no replica free soon and the next one has."""

    def judge(self, relay: Any, status: int, headers: bytes, body: bytes) -> bytes | None:
        """The answer as the client gets it, or None to ask the next model instead."""

    def over(self, relay: Any, outcome: RelayOutcome, status: int) -> None: ...
