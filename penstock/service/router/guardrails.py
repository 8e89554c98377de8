"""Guardrails: an operator's own service is asked before a model is, and before a client reads the answer.

It is sent what was asked, and what was answered, as JSON, and allows it, refuses it with a message, or writes it anew. Where it
does not answer, the request is refused or passes, as the operator says. Prices, limits and models are decided elsewhere.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from penstock.metrics.exposition import Counter
from penstock.service.edge.refusal import Refusal, unavailable
from penstock.service.gateway.settings import GuardrailSettings
from penstock.service.router.proxy.asked import NOTHING, wanted_of
from penstock.service.router.proxy.incoming import AnswerSink, Incoming
from penstock.service.upstream.connections import ConnectionPool, fetch
from penstock.service.upstream.endpoint import endpoint_of

MAX_HELD_BYTES = 4 << 20
"""Of an answer that is held until it has been judged."""
STREAMS = (b"text/event-stream", b"application/x-ndjson")


class GuardrailAnswer(msgspec.Struct):
    allow: bool
    message: str = ""
    body: msgspec.Raw = msgspec.Raw()
    """In place of the request, or of an answer that is no stream."""


class Judged(msgspec.Struct):
    """What the service is sent."""

    stage: str
    request_id: str
    tenant: str
    model: str
    path: str
    request: msgspec.Raw
    answer: msgspec.Raw | str | None = None
    """An object, or the text of a stream's events."""


@dataclass(slots=True)
class Guardrails:
    """Lives on the router's event loop."""

    _verdicts: Counter
    _run: Callable[[Coroutine[Any, Any, None]], None]
    _refuse: Callable[[Incoming, AnswerSink, Refusal], None]
    _pools: dict[str, ConnectionPool] = field(default_factory=dict)

    async def before(self, settings: GuardrailSettings, request: Incoming) -> Incoming:
        """The request as it goes on. Raises Refusal."""
        verdict = await self._ask(settings, settings.before, _judged("before", request))
        return replace(request, body=bytes(verdict.body)) if verdict.body else request

    def guarded(self, settings: GuardrailSettings, request: Incoming, client: AnswerSink) -> "GuardedAnswer":
        """Where the answer goes in place of the client."""

        async def judge(answer: bytes, is_stream: bool) -> bytes:
            said = answer.decode("utf-8", "replace") if is_stream else msgspec.Raw(answer)
            verdict = await self._ask(settings, settings.after, _judged("after", request, said))
            return bytes(verdict.body) if verdict.body and not is_stream else answer

        return GuardedAnswer(client, judge, partial(self._refuse, request, client), self._run)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    async def _ask(self, settings: GuardrailSettings, url: str, asked: Judged) -> GuardrailAnswer:
        try:
            pool = self._pools.get(url)
            if pool is None:
                pool = self._pools[url] = ConnectionPool(endpoint_of(url))
            query = url.partition("?")[2]
            target = ("" if pool.endpoint.path else "/") + (f"?{query}" if query else "")
            found = await fetch(pool, pool.request("POST", target, body=msgspec.json.encode(asked)), settings.timeout_s)
            if found.status != 200:
                raise ValueError(f"status {found.status}")
            verdict = msgspec.json.decode(found.body, type=GuardrailAnswer)
        except (OSError, ValueError) as error:
            self._count(asked, "failed")
            if settings.on_failure == "pass":
                return GuardrailAnswer(True)
            message = "the guardrail of this service does not answer, so nothing passes; try later"
            raise unavailable(message, 2, code="guardrail_unavailable") from error
        self._count(asked, "allowed" if verdict.allow else "refused")
        if not verdict.allow:
            which = "request" if asked.stage == "before" else "answer"
            said = verdict.message[:500] or "no reason is given"
            raise Refusal(400, f"the {which} is refused by a guardrail: {said}", code="content_policy_violation")
        return verdict

    def _count(self, asked: Judged, outcome: str) -> None:
        self._verdicts.add(1, (("stage", asked.stage), ("outcome", outcome)))


@dataclass(slots=True)
class GuardedAnswer:
    """Stands before the client: holds the whole answer, streams too, until it has been judged."""

    _sink: AnswerSink
    _judge: Callable[[bytes, bool], Coroutine[Any, Any, bytes]]
    """Told the answer, and whether it is a stream's events."""
    _refuse: Callable[[Refusal], None]
    _run: Callable[[Coroutine[Any, Any, None]], None]
    _begun: tuple[int, bytes] = (0, b"")
    _parts: list[bytes] = field(default_factory=list)
    _num_bytes: int = 0

    @property
    def answering(self) -> Any:
        return self._sink.answering

    @answering.setter
    def answering(self, who: Any) -> None:
        self._sink.answering = who

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        if status != 200:
            self._sink.respond(status, headers, body)
        else:
            self._run(self._pass(body, False, partial(self._sink.respond, status, headers)))

    def begin(self, status: int, headers: bytes) -> None:
        self._begun = (status, headers)

    def write(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes <= MAX_HELD_BYTES:
            self._parts.append(data)

    def end(self) -> None:
        is_stream = any(kind in self._begun[1] for kind in STREAMS)
        self._run(self._pass(b"".join(self._parts), is_stream, self._send_stream))

    def _send_stream(self, passed: bytes) -> None:
        self._sink.begin(*self._begun)
        self._sink.write(passed)
        self._sink.end()

    async def _pass(self, answer: bytes, is_stream: bool, send: Callable[[bytes], None]) -> None:
        """On to the client, unless it is refused or nobody waits for it any more."""
        try:
            if self._num_bytes > MAX_HELD_BYTES:
                raise Refusal(413, "the answer is too long to be judged by a guardrail; ask for less")
            passed = await self._judge(answer, is_stream)
        except Refusal as error:
            if self._sink.is_open:
                self._refuse(error)
            return
        if self._sink.is_open:
            send(passed)


def _judged(stage: str, request: Incoming, answer: msgspec.Raw | str | None = None) -> Judged:
    wanted, tenant = wanted_of(request.body) or NOTHING, getattr(request.caller, "tenant", "")
    body = msgspec.Raw(request.body)
    return Judged(stage, request.request_id.decode("latin-1"), tenant, wanted.model or "", request.path, body, answer)
