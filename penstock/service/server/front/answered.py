"""A request that was let in, the call made of it, and its answer while it is sent."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct

from penstock.service.server.blocks import PrefillAnswer, PromptBlocks, prefilling
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.generation import Caller, Delivery
from penstock.service.server.http.answer import HttpAnswer
from penstock.service.server.http.call import Call
from penstock.service.server.http.calls import Calls, OpenCall
from penstock.service.server.http.connection import exchange_of
from penstock.service.server.http.relay import RELAYED, check_resumed
from penstock.service.server.http.trace import SpanTracer
from penstock.service.server.jobs.bills import Bills
from penstock.service.server.served import ServedModel

B = TypeVar("B", bound=Struct)

IGNORED_HEADER = b"x-penstock-ignored"


@dataclass(frozen=True, slots=True)
class Begun(Generic[B]):
    """A request that was let in: its checked body, the model it is for, and who sent it."""

    body: B
    model: ServedModel
    caller: Caller
    ignored: tuple[str, ...]
    """Fields of the body that nothing reads."""
    load_s: float = 0.0
    """How long it waited for the model to be loaded."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names are a client's: what no header can hold is shown as a question mark."""
        names = "".join(c if c.isascii() and c.isprintable() else "?" for c in ", ".join(self.ignored)[:1000])
        return [(IGNORED_HEADER, names.encode())] if self.ignored else []


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that could be made, and how its answer is worded and sent."""

    model: ServedModel
    call: Call
    encoder: AnswerEncoder
    delivery: Delivery

    @contextmanager
    def running(self) -> Iterator[Call]:
        """The call without a connection: begun, counted while it runs, and taken back whatever happens."""
        call, meters = self.call, self.model.meters
        meters.enter(call)
        try:
            call.start()
            yield call
        finally:
            call.close()
            meters.leave(call)

    async def collect(self) -> dict[str, Any]:
        """The whole answer, for a file. Raises Failure when a choice ends badly."""
        with self.running() as call:
            while not call.is_over:
                self.encoder.keep(await call.news())
            return self.encoder.whole(call, None)


class CallBook:
    """Where calls that run on connections are written down: the table of open ones, spans, and bills."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.tracer: SpanTracer | None = None
        self.bills: Bills | None = None
        """Where a gateway finds what answers took that were not sent to their end."""


class Counted:
    """An answer that is watched and measured while it runs."""

    def __init__(self, book: CallBook, prepared: Prepared, begun: Begun[Any]) -> None:
        model, call = prepared.model, prepared.call
        call.reports_progress = prepared.delivery.reports_progress
        call.load_s = begun.load_s
        call.arrival_s -= begun.load_s  # what its client has waited is counted
        self._book = book
        self._prepared = prepared
        self._caller = begun.caller
        self._answer = HttpAnswer(
            call,
            prepared.encoder,
            prepared.delivery,
            timings=model.meters.timings,
            retry_after_s=model.admission.retry_after_s,
            headers=[*model.admission.limits(begun.caller.tenant), *begun.headers],
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        book, prepared = self._book, self._prepared
        call, meters = prepared.call, prepared.model.meters
        relayed = RELAYED.get()
        if relayed is not None and relayed.asks_blocks:
            blocks = PromptBlocks(call.prompts[0], call.parameters.salt, prepared.model.facts.block_size)
            await blocks(scope, receive, send)
            return
        answer: HttpAnswer | PrefillAnswer = self._answer
        if relayed is not None and relayed.only_prefills:
            call = prefilling(prepared.model.client, prepared.model.tokenizer, call)
            answer = PrefillAnswer(call)
        elif relayed is not None and relayed.resumed is not None:
            check_resumed(relayed.resumed, len(call.writers), prepared.model.vocab_size, prepared.model.max_context)
        exchange_of(scope).call = call
        book.calls.enter(OpenCall(call, send, prepared.encoder.dialect, prepared.model.admission))
        meters.enter(call)
        ledger = prepared.model.live.ledger
        ledger.enter(call, scope)
        try:
            await answer(scope, receive, send)
        finally:
            if not answer.is_sent and book.bills is not None:
                book.bills.for_call(self._caller, prepared.model.known_name, call)
            book.calls.leave(call)
            ledger.leave(call, meters.watches(call), time.monotonic())
            if book.tracer is not None:
                exchange_of(scope).timings = meters.timings(call)
            meters.leave(call)
