"""The way of a request from the inbox to the scheduler: its adapter is placed, its grammar compiled, its blocks fetched.

inbox -> adapter gate -> grammar -> peers, tiers -> Scheduler.add            each may hold it and hand it back by a message
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import CapacityError, RequestError
from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import CANCELLED, Scheduler
from penstock.runtime.engine.adapters.gate import AdapterGate, AdapterOrder, AdapterRead, Entrance
from penstock.runtime.engine.grammar_state import Compiled
from penstock.runtime.engine.loop.proposer import Proposer
from penstock.runtime.engine.peers.exchange import PeerExchange, PeerNews
from penstock.runtime.engine.tiers.news import TierNews
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder
from penstock.runtime.engine.tiers.tiers import KVTiers


class CancelOrder(NamedTuple):
    """A request, or one choice of it, that is not wanted any more."""

    request_id: int
    choice: int | None


Message = Request | CancelOrder | Compiled | AdapterRead | AdapterOrder | TierNews | CacheOrder | PeerNews


@dataclass(slots=True)
class Intake:
    """Belongs to the loop's thread. `put` hands a message to the inbox, from any thread."""

    _scheduler: Scheduler
    _put: Callable[[Message], None]
    _proposer: Proposer
    _adapters: AdapterGate | None
    _tiers: KVTiers | None
    _peers: PeerExchange | None
    _refused_orders: tuple[CacheAnswer, ...] = ()

    @property
    def is_holding(self) -> bool:
        """Some request is on its way to the scheduler."""
        grammar_state = self._proposer.grammar_state
        return (
            (grammar_state is not None and grammar_state.is_compiling)
            or (self._adapters is not None and self._adapters.is_waiting)
            or (self._tiers is not None and self._tiers.is_fetching)
            or (self._peers is not None and self._peers.is_fetching)
        )

    def take(self, message: Message, now: float) -> list[Delta]:
        """What becomes of a message: a request, or news of one, enters or is refused."""
        if isinstance(message, CancelOrder):
            return list(self._cancel(message))
        if isinstance(message, Compiled):
            return self._take_compiled(message, now)
        if isinstance(message, TierNews):
            ready = () if self._tiers is None else self._tiers.take(message)
            return [delta for request in ready for delta in self._schedule(request, now)]
        if isinstance(message, CacheOrder):
            self._order_cache(message)
            return []
        if isinstance(message, PeerNews):
            one = None if self._peers is None else self._peers.take(message)
            return [] if one is None else self._schedule(one, now)
        if isinstance(message, Request) and not message.adapter:
            return self._enter(message, now)
        return self._take_adapted(message, now)

    def follow(self, deltas: tuple[Delta, ...], now: float) -> list[Delta]:
        """Requests that enter because others have ended: the slots of their adapters are free."""
        return [] if self._adapters is None else self._let_in(self._adapters.follow(deltas), now)

    def cache_answers(self) -> tuple[CacheAnswer, ...]:
        """What came of orders since the last call."""
        refused, self._refused_orders = self._refused_orders, ()
        return refused if self._tiers is None else self._tiers.orders.answers()

    def _order_cache(self, order: CacheOrder) -> None:
        if self._tiers is not None:
            self._tiers.order(order)
        else:
            error = "this engine keeps no sessions; serve with --kv-host or --kv-disk"
            self._refused_orders += (CacheAnswer(order.order_id, error),)

    def _take_adapted(self, message: Request | AdapterRead | AdapterOrder, now: float) -> list[Delta]:
        gate = self._adapters
        if gate is None:
            return self._enter(message, now) if isinstance(message, Request) else []
        if isinstance(message, Request):
            return self._let_in(gate.ask(message), now)
        return self._let_in(gate.take(message) if isinstance(message, AdapterRead) else gate.order(message), now)

    def _let_in(self, entrance: Entrance, now: float) -> list[Delta]:
        """Requests whose adapters are on the device enter; those of adapters that cannot be had are refused."""
        deltas: list[Delta] = []
        for request in entrance.entering:
            deltas.extend(self._enter(request, now))
        for request, message, is_ours in entrance.refused:
            deltas.extend(_refusals(request, message, Fault.ENGINE if is_ours else Fault.REQUEST))
        return deltas + self.follow(tuple(deltas), now) if deltas else deltas

    def _enter(self, request: Request, now: float) -> list[Delta]:
        """Schedule a request, once its grammar is compiled if it has one."""
        if request.params.grammar is None:
            return self._add(request, now)
        grammar_state = self._proposer.grammar_state
        if grammar_state is None:
            return _refusals(request, "this engine cannot hold an answer to a grammar; leave it out", Fault.REQUEST)
        grammar_state.compile(request, self._put)
        return []

    def _add(self, request: Request, now: float) -> list[Delta]:
        """Schedule a request, once what peers or tiers have of its prompt is on the device."""
        if self._peers is not None and self._peers.fetch(request):
            return []
        if self._tiers is not None and self._tiers.fetch(request, self._put):
            return []
        return self._schedule(request, now)

    def _schedule(self, request: Request, now: float) -> list[Delta]:
        hashes = [] if self._tiers is None else self._tiers.hashes_of(request)
        try:
            self._scheduler.add(request, now, hashes)
        except RequestError as error:
            return _refusals(request, str(error), Fault.REQUEST)
        except CapacityError as error:
            return _refusals(request, str(error), Fault.CAPACITY)
        return []

    def _take_compiled(self, compiled: Compiled, now: float) -> list[Delta]:
        grammar_state, request = self._proposer.grammar_state, compiled.request
        if grammar_state is None or not grammar_state.take(compiled):
            return []  # cancelled while it was compiled
        if compiled.matcher is None:
            return _refusals(request, compiled.error, Fault.REQUEST)
        refusals = self._add(request, now)
        if refusals:
            grammar_state.drop(request)
        return refusals

    def _cancel(self, cancel: CancelOrder) -> tuple[Delta, ...]:
        if cancel.choice is None:
            for holder in (self._adapters, self._tiers, self._peers, self._proposer.grammar_state):
                request = None if holder is None else holder.cancel(cancel.request_id)
                if request is not None:
                    return tuple(_endings(request, CANCELLED))
        return self._proposer.follow(self._scheduler.cancel(*cancel))


def _refusals(request: Request, message: str, fault: Fault) -> list[Delta]:
    return _endings(request, Finish(FinishReason.ERROR, message, fault))


def _endings(request: Request, finish: Finish) -> list[Delta]:
    return [Delta(request.request_id, choice, (), finish) for choice in range(request.params.n)]
