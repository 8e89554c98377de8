"""The answer to one request as it arrives: deltas wait here for their reader.

A reader that falls behind finds fewer, larger deltas, so what waits is no larger than the tokens themselves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace

from penstock.runtime.core.batch import Delta, Drafted
from penstock.runtime.core.request import Request

MAX_PENDING = 64
"""Deltas that wait one by one before they are folded into one a choice; with many choices two a choice, so that folding halves
them and costs no more than the deltas themselves."""


@dataclass(slots=True, eq=False)
class DeltaStream:
    """Written by the client on the event loop, read by one task there. Every choice ends in exactly one finish."""

    request: Request
    unended: set[int] = field(init=False)
    """Choices whose finish has not arrived."""
    tokens: list[list[int]] = field(init=False)
    """Tokens of each choice so far: another engine can continue from there."""
    is_started: bool = False
    """Part of the answer has arrived: starting anew would be noticed."""
    num_computed: int = 0
    """Prompt tokens computed, while the prompt is being computed in parts."""
    num_sent: int = 0
    """Engines that have been given the request."""
    reader: Callable[[Delta, float], bool] | None = None
    """Called with what arrives while the reading task waits; True means it is dealt with and the task need not wake."""
    _pending: list[Delta] = field(default_factory=list)
    _waiter: asyncio.Future[None] | None = None
    _max_pending: int = field(init=False)

    def __post_init__(self) -> None:
        num_choices = self.request.params.n
        self._max_pending = max(MAX_PENDING, 2 * num_choices)
        self.unended = set(range(num_choices))
        self.tokens = [list(tokens) for tokens in self.request.resumed] or [[] for _ in range(num_choices)]

    @property
    def can_resume(self) -> bool:
        """Another engine can continue it without the reader noticing."""
        params = self.request.params
        return len(self.unended) == params.n and params.prompt_logprobs is None

    def resume(self) -> None:
        """What is asked for from here on is the rest."""
        self.request = replace(self.request, resumed=tuple(map(tuple, self.tokens)))

    @property
    def is_over(self) -> bool:
        """Everything has been read."""
        return not self.unended and not self._pending

    def push(self, delta: Delta, now: float, *, at_once: bool = False, is_held: bool = False) -> None:
        """`at_once`: nothing else is about to arrive, so the reader may have it now, with what is held. `is_held`: more is,
        and `release` follows. Finishes are left to the task."""
        self.is_started = True
        self.tokens[delta.choice] += delta.token_ids
        waiter = self._waiter
        is_awaited = waiter is not None and not waiter.done()
        if delta.finish is not None:
            self.unended.discard(delta.choice)
        elif at_once and is_awaited and self._offer(delta, now):
            return
        pending = self._pending
        pending.append(delta)
        if len(pending) >= self._max_pending:
            self._pending = folded(pending)
        if not is_held or delta.finish is not None:
            self.wake()

    def release(self, now: float) -> None:
        """Let the reader have what is held."""
        if self._pending and self._waiter is not None and not self._waiter.done() and not self._offer(None, now):
            self.wake()

    def _offer(self, delta: Delta | None, now: float) -> bool:
        """Offer the reader all that waits, this one last; it reads one choice."""
        if self.reader is None:
            return False
        pending = self._pending
        if pending or delta is None:
            (delta,) = folded(pending if delta is None else [*pending, delta])
        if not self.reader(delta, now):
            return False
        self._pending = []
        return True

    def wake(self) -> None:
        """Wake the reading task."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delta]:
        """All that has arrived since the last time; empty only after a wake-up, or when everything has been read."""
        if not self._pending and self.unended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken, self._pending = self._pending, []
        return taken

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while not self.is_over:
            for delta in await self.take():
                yield delta


def folded(deltas: list[Delta]) -> list[Delta]:
    """The same content in one delta per choice."""
    by_choice: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_choice.setdefault(delta.choice, []).append(delta)
    return [_joined(parts) for parts in by_choice.values()]


def _joined(parts: list[Delta]) -> Delta:
    first, last = parts[0], parts[-1]
    return Delta(
        first.request_id,
        first.choice,
        tuple(token for part in parts for token in part.token_ids),
        last.finish,
        tuple(logprob for part in parts for logprob in part.logprobs),
        tuple(logprob for part in parts for logprob in part.prompt_logprobs),
        first.prefix,
        tuple(_drafts(parts)),
    )


def _drafts(parts: list[Delta]) -> Iterator[Drafted]:
    """Marks of all parts, counted from the first token of the first part."""
    num_before = 0
    for part in parts:
        yield from (drafts._replace(begin=drafts.begin + num_before) for drafts in part.drafts)
        num_before += len(part.token_ids)
