"""One call that generates: its requests at the engine, its choices being written, and how it ends.

A call has one or more prompts with the same parameters, n choices each; choice k of prompt i has index i * n + k.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from penstock.runtime.core.batch import Delta, Drafted, Finish, FinishReason, Logprob
from penstock.runtime.core.request import Request
from penstock.runtime.engine.client import DeltaStream, EngineClient, folded
from penstock.runtime.text.stream.segments import Segments, ToolCallStart, content_of, joined, reasoning_of
from penstock.runtime.text.stream.stream import TextRules, TextStream
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.marks import CUT

STOP = "stop"
LENGTH = "length"
TOOL_CALLS = "tool_calls"
PREDICTION = "prediction"
"""Who guessed where drafts came from the client."""
CANCELLED = Finish(FinishReason.CANCELLED)


class Piece(NamedTuple):
    """News of one choice."""

    choice: int
    segments: Segments
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprob, ...]
    prompt_logprobs: tuple[Logprob, ...]
    finish_reason: str | None
    stop: str | None = None
    """The stop string that ended the text."""
    drafts: tuple[Drafted, ...] = ()
    """Of the steps that checked some."""

    @property
    def are_drafts(self) -> list[bool]:
        """For each token, whether it was guessed before it was drawn."""
        runs = [(each.begin, each.begin + each.num_accepted) for each in self.drafts]
        return [any(begin <= place < end for begin, end in runs) for place in range(len(self.token_ids))]

    @property
    def content(self) -> str:
        return content_of(self.segments)

    @property
    def reasoning(self) -> str:
        return reasoning_of(self.segments)


@dataclass(slots=True, eq=False)
class Writer:
    """Ends once: by the engine's finish, or by a stop string that only the text shows."""

    index: int
    tokenizer: InitVar[Tokenizer]
    _rules: TextRules
    finish_reason: str | None = None
    failure: Finish | None = None
    """How it ended if it ended badly."""
    num_cached: int = 0
    drafted: tuple[int, int] = (0, 0)
    """Drafts that were checked, and of those the ones that came true."""
    predicted: tuple[int, int] = (0, 0)
    """Likewise, of those that the client predicted."""
    from_tiers: tuple[int, int] = (0, 0)
    """Of the cached tokens, those that came back from host memory and from the disk."""
    cache_miss: str = ""
    """Why the prefix cache had no more of the prompt."""
    token_ids: list[int] = field(default_factory=list)
    _has_calls: bool = False
    _mute: tuple[tuple[int, ...], tuple[Drafted, ...]] = (), ()
    """Tokens that show no text yet, such as the first of several that make one character, and their drafts."""
    _text: TextStream = field(init=False)

    def __post_init__(self, tokenizer: Tokenizer) -> None:
        self._text = TextStream(tokenizer, self._rules)

    @property
    def num_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        return self._text.num_reasoning_tokens

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    def take(self, delta: Delta) -> Piece | None:
        """What is new; None if there is nothing to send yet, or no more."""
        if self.finish_reason is not None or self.failure is not None:
            return None
        finish = delta.finish
        if delta.prefix is not None:
            self.num_cached = delta.prefix.num_reused
            self.from_tiers = (delta.prefix.host, delta.prefix.disk)
            self.cache_miss = "; ".join(filter(None, (delta.prefix.miss, delta.prefix.tier_miss)))
        for drafts in delta.drafts:
            self.drafted = _added(self.drafted, drafts)
            if drafts.source == PREDICTION:
                self.predicted = _added(self.predicted, drafts)
        token_ids, logprobs = delta.token_ids, delta.logprobs
        is_silent = finish is not None and finish.stop_token_id is not None and not self._rules.include_stop
        before = self._text.num_tokens
        text = self._text.feed(token_ids, silent_last=is_silent)
        segments, stop = text.segments, text.stop
        if stop is not None:
            count = self._text.num_tokens - before
            token_ids, logprobs = token_ids[:count], logprobs[:count]
            self.finish_reason = STOP
        elif finish is not None:
            if finish.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                self.failure = finish
                return None
            self.finish_reason = STOP if finish.reason is FinishReason.STOP else LENGTH
        if self.finish_reason is not None:
            segments, stop = self._end(segments)
        self.token_ids.extend(token_ids)
        checked, (mute_ids, mute_drafts) = delta.drafts, self._mute
        if mute_ids:
            moved = [each._replace(begin=each.begin + len(mute_ids)) for each in checked]
            token_ids, checked = (*mute_ids, *token_ids), (*mute_drafts, *moved)
        if not (segments or logprobs or delta.prompt_logprobs or self.finish_reason):
            self._mute = token_ids, checked
            return None
        self._mute = (), ()
        if len(segments) > 1 or (segments and type(segments[0]) is ToolCallStart):
            self._has_calls |= any(type(segment) is ToolCallStart for segment in segments)
        reason = self.finish_reason
        return Piece(self.index, segments, token_ids, logprobs, delta.prompt_logprobs, reason, stop, checked)

    def _end(self, segments: Segments) -> tuple[Segments, str | None]:
        """All that is left to say, and the stop string that ended it. Settles how the choice ended."""
        rest = self._text.finish()
        segments = joined((*segments, *rest.segments))
        if self.finish_reason is LENGTH and rest.stop is not None:
            self.finish_reason = STOP
        self._has_calls |= any(type(segment) is ToolCallStart for segment in segments)
        if self.finish_reason is STOP and self._has_calls:
            self.finish_reason = TOOL_CALLS
        return segments, rest.stop


Reporting = Callable[[list[Piece]], bytes]


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
        self, client: EngineClient, tokenizer: Tokenizer, requests: Sequence[Request], rules: TextRules
    ) -> None:
        """A request a prompt, alike but for their prompts and ids."""
        self.requests = [*requests]
        self.rules = rules
        self.num_choices = requests[0].params.n
        self.arrival_s = requests[0].arrival_s
        self.load_s = 0.0
        """How long its client has waited for the model to be loaded, before anything else."""
        self.sending_since_s: float | None = None
        """Since when a write to the client has been waiting."""
        self.reports_progress = False
        """Its client asked to be told how far it is while it waits."""
        self.is_marked = False
        """A router reads the stream: every write ends in a mark."""
        self.wrote_s = self.arrival_s
        self.abort: Callable[[], None] = lambda: None
        """Drops the connection without waiting for the client to read."""
        self.ended: list[Any] = []
        """What the meters keep of requests that have ended."""
        self._client = client
        self.writers = [Writer(index, tokenizer, rules) for index in range(len(requests) * self.num_choices)]
        self._num_unended = len(self.writers)
        self._streams: list[DeltaStream] = []
        self._fault: Exception | None = None
        self._queue: asyncio.Queue[tuple[int, list[Delta]]] | None = None
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [request.prompt for request in self.requests]

    @property
    def long_context(self) -> str:
        """What the engine keeps of a text, where it forgets; empty where it keeps all."""
        facts = self._client.facts
        return "" if facts is None else facts.long_context

    @property
    def is_over(self) -> bool:
        return not self._num_unended

    @property
    def shown(self) -> Sequence[Writer]:
        """Whose tokens its client has been told of, or will be with what is written next."""
        return self.writers

    @property
    def waiting(self) -> "DeltaStream | None":
        """Its first request, while nothing of the answer is there."""
        first = self._streams[0] if self._streams else None
        return first if first is not None and not first.is_started else None

    def resume(self, tokens: Mapping[int, Sequence[int]]) -> list[Piece]:
        """Before `start`: go on after these tokens, by choice, which another engine drew. Returns what was told of them."""
        pieces, num_choices = [], self.num_choices
        for number, request in enumerate(self.requests):
            resumed = []
            for choice in range(num_choices):
                seen, finish = _ended(request, tokens.get(number * num_choices + choice, ()))
                pieces += self._written(number, [Delta(request.request_id, choice, seen, finish)])
                # The last token of one that is over is drawn again, and nobody is told.
                resumed.append(seen if finish is None else seen[:-1])
            self.requests[number] = replace(request, resumed=tuple(resumed))
        return pieces

    def start(self) -> None:
        self._streams = [self._client.submit(request) for request in self.requests]
        for number, request in enumerate(self.requests):
            for choice in range(self.num_choices if request.resumed else 0):
                if self.writers[number * self.num_choices + choice].is_over:
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
        for request, stream in zip(self.requests, self._streams, strict=False):
            self._client.cancel(request.request_id)
            for choice in tuple(stream.unended):
                stream.push(Delta(request.request_id, choice, (), CANCELLED), now)

    def close(self) -> None:
        """Take back whatever has not ended."""
        for request in self.requests:
            self._client.cancel(request.request_id)
        for pump in self._pumps:
            pump.cancel()

    def _written(self, number: int, deltas: list[Delta]) -> list[Piece]:
        pieces = []
        first = number * self.num_choices
        if len(deltas) > self.num_choices:
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


def _ended(request: Request, shown: Sequence[int]) -> tuple[tuple[int, ...], Finish | None]:
    """The tokens of an answer that were shown, and how it ended if it has."""
    if not shown or shown[-1] >= 0:
        return tuple(shown), None
    *seen, sign = shown
    if sign == CUT:
        return tuple(seen), Finish(FinishReason.LENGTH)
    is_stop = seen and seen[-1] in request.params.stop_token_ids and not request.params.ignore_eos
    return tuple(seen), Finish(FinishReason.STOP, stop_token_id=seen[-1] if is_stop else None)


def _added(sums: tuple[int, int], drafts: Drafted) -> tuple[int, int]:
    return sums[0] + drafts.num_checked, sums[1] + drafts.num_accepted
