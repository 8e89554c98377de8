"""One call that generates: its requests at the engine, its choices being written, and how it ends.

A call has one or more prompts with the same parameters, n choices each; choice k of prompt i has index i * n + k.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from penstock.runtime.core.batch import Delta, Finish, FinishReason
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import DeltaStream, EngineClient, folded
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.writer import Piece, Writer

CANCELLED = Finish(FinishReason.CANCELLED)
Reporting = Callable[[list[Piece]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParameters:
    """What every prompt of a call asks for."""

    sampling: SamplingParams
    rules: TextRules
    priority: int = 0
    deadline_s: float | None = None
    tenant: str = ""
    adapter: str = ""
    salt: str = ""
    session: str = ""
    pins: tuple[tuple[int, float], ...] = ()
    """(tokens, seconds): the prompt's first tokens are kept in the prefix cache for so long."""
    is_batch: bool = False
    prediction: tuple[int, ...] = ()
    speculate: int | None = None
    peer: str = ""
    """Another engine that has blocks of the prompts."""

    def request(self, request_id: int, prompt: tuple[int, ...], arrival_s: float) -> Request:
        """What the engine is asked for one prompt."""
        return Request(
            request_id=request_id,
            prompt=prompt,
            params=self.sampling,
            arrival_s=arrival_s,
            priority=self.priority,
            deadline_s=self.deadline_s,
            tenant=self.tenant,
            adapter=self.adapter,
            salt=self.salt,
            session=self.session,
            pins=self.pins,
            is_batch=self.is_batch,
            prediction=self.prediction,
            speculate=self.speculate,
            peer=self.peer,
        )


class Failure(Exception):
    """A choice ended badly, and so the call."""

    def __init__(self, finish: Finish) -> None:
        super().__init__(finish.message)
        self.finish = finish


class Pipe(Protocol):
    """Where the parts of a body go."""

    @property
    def is_writable(self) -> bool: ...

    def write_part(self, data: bytes) -> None: ...


class Call:
    """`news` until `is_over`; `close` in any case. Lives on one event loop."""

    def __init__(
        self, client: EngineClient, tokenizer: Tokenizer, prompts: Sequence[tuple[int, ...]], parameters: CallParameters
    ) -> None:
        self.arrival_s = time.monotonic()
        self.load_s = 0.0
        """How long its client has waited for the model to be loaded, before anything else."""
        self.prompts = prompts
        self.parameters = parameters
        self.sending_since_s: float | None = None
        """Since when a write to the client has been waiting."""
        self.reports_progress = False
        """Its client asked to be told how far it is while it waits."""
        self.is_streaming = False
        """Its headers have been sent and events follow."""
        self.is_marked = False
        """A router reads the stream: every write ends in a mark."""
        self.wrote_s = self.arrival_s
        self.abort: Callable[[], None] = lambda: None
        """Drops the connection without waiting for the client to read."""
        self.ended: list[Any] = []
        """What the meters keep of requests that have ended."""
        self._client = client
        self._num_choices = parameters.sampling.n
        self.writers = [Writer(index, tokenizer, parameters.rules) for index in range(len(prompts) * self._num_choices)]
        self._num_unended = len(self.writers)
        self._requests = [parameters.request(client.next_id(), prompt, self.arrival_s) for prompt in prompts]
        self._streams: list[DeltaStream] = []
        self._fault: Exception | None = None
        self._queue: asyncio.Queue[tuple[int, list[Delta]]] | None = None
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def requests(self) -> Sequence[Request]:
        return self._requests

    @property
    def long_context(self) -> str:
        """What the engine keeps of a text, where it forgets; empty where it keeps all."""
        facts = self._client.facts
        return "" if facts is None else facts.long_context

    @property
    def is_over(self) -> bool:
        return not self._num_unended

    @property
    def waiting(self) -> "DeltaStream | None":
        """Its first request, while nothing of the answer is there."""
        first = self._streams[0] if self._streams else None
        return first if first is not None and not first.is_started else None

    def check(self) -> None:
        """Raise RequestError for what could never be served."""
        for request in self._requests:
            self._client.check(request)

    def resume(self, tokens: Mapping[int, Sequence[int]]) -> list[Piece]:
        """Before `start`: go on after these tokens, by choice, which another engine drew. Returns what was told of them."""
        pieces, num_choices = [], self._num_choices
        for number, request in enumerate(self._requests):
            resumed = []
            for choice in range(num_choices):
                seen = tuple(tokens.get(number * num_choices + choice, ()))
                delta = Delta(request.request_id, choice, seen, _finish_of(request, seen))
                pieces += self._written(number, [delta])
                is_over = self.writers[number * num_choices + choice].is_over
                resumed.append(seen[:-1] if is_over else seen)  # its last token is drawn again, and nobody is told
            self._requests[number] = replace(request, resumed=tuple(resumed))
        return pieces

    def start(self) -> None:
        self._streams = [self._client.submit(request) for request in self._requests]
        for number, request in enumerate(self._requests):
            for choice in range(self._num_choices if request.resumed else 0):
                if self.writers[number * self._num_choices + choice].is_over:
                    self._client.cancel_choice(request.request_id, choice)
        if len(self._streams) > 1:
            self._queue = asyncio.Queue()
            self._pumps = [
                asyncio.create_task(self._pump(number, stream, self._queue))
                for number, stream in enumerate(self._streams)
            ]

    async def news(self) -> list[Piece]:
        """What has arrived since the last time. Raises Failure when a choice ends badly."""
        if self._queue is None:
            deltas = await self._streams[0].take()
            if self._fault is not None:
                raise self._fault
            return self._written(0, deltas)
        pieces = self._written(*await self._queue.get())
        while not self._queue.empty():
            pieces += self._written(*self._queue.get_nowait())
        return pieces

    def report_at_once(self, pipe: "Pipe", reporting: Reporting) -> None:
        """From now on write news where they arrive, while `news` is waited for; that spares waking a task for each token.

        A call of several choices is left as it is: its news of one step are told together.
        """
        if len(self.writers) > 1:
            return
        stream = self._streams[0]

        def read(delta: Delta, now: float) -> bool:
            if not pipe.is_writable:
                return False
            try:
                pieces = self._written(0, [delta])
                data = reporting(pieces) if pieces else b""
                if data:  # a part of no bytes would be the last of the body
                    pipe.write_part(data)
                    self.wrote_s = now
            except Exception as error:  # the fault of this call alone: whoever else is served by this step must be
                self._fault = error
            if self._fault is not None or self.is_over:
                stream.wake()
            return True

        stream.reader = read

    def cancel(self) -> None:
        """The client has left: free what the call holds, and let `news` know."""
        now = time.monotonic()
        for request, stream in zip(self._requests, self._streams, strict=False):
            self._client.cancel(request.request_id)
            for choice in tuple(stream.unended):
                stream.push(Delta(request.request_id, choice, (), CANCELLED), now)

    def close(self) -> None:
        """Take back whatever has not ended."""
        for request in self._requests:
            self._client.cancel(request.request_id)
        for pump in self._pumps:
            pump.cancel()

    def _written(self, number: int, deltas: list[Delta]) -> list[Piece]:
        pieces = []
        first = number * self._num_choices
        if len(deltas) > self._num_choices:
            deltas = folded(deltas)  # we are behind: fewer, longer pieces catch up
        for delta in deltas:
            writer = self.writers[first + delta.choice]
            if writer.is_over:
                continue
            piece = writer.take(delta)
            if piece is not None:
                pieces.append(piece)
            if writer.failure is not None:
                raise Failure(writer.failure)
            if writer.finish_reason is not None:
                self._num_unended -= 1
                if delta.finish is None and self._num_unended:  # ended by a stop string, which the engine cannot see
                    self._client.cancel_choice(delta.request_id, delta.choice)
        if deltas and not self._num_unended:
            self.close()
        return pieces

    async def _pump(self, number: int, stream: DeltaStream, queue: "asyncio.Queue[tuple[int, list[Delta]]]") -> None:
        while not stream.is_over:
            queue.put_nowait((number, await stream.take()))


def _finish_of(request: Request, tokens: Sequence[int]) -> Finish | None:
    """How an answer ended that has these tokens; None if it goes on."""
    params = request.params
    is_stop = not params.ignore_eos and len(tokens) > params.min_tokens
    if tokens and is_stop and tokens[-1] in params.stop_token_ids:
        return Finish(FinishReason.STOP, stop_token_id=tokens[-1])
    if params.max_tokens is not None and len(tokens) >= params.max_tokens:
        return Finish(FinishReason.LENGTH)
    return None
