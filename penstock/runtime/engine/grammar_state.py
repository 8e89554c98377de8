"""Sequences held to a grammar: compiled before they are scheduled, masked when they draw, followed as they continue.

A matcher's state is a function of the reported tokens, so a sequence that is preempted, recomputed or left out of a step
needs nothing done here. The scheduler knows none of this, and the `Grammars` protocol hides what a grammar means.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.errors import RequestError
from penstock.runtime.core.batch import Batch, Delta, Fault, Finish, FinishReason
from penstock.runtime.core.request import Grammar, Request
from penstock.runtime.core.scheduler import Scheduler

WORD_BYTES = 4
MIN_FORCED = 2
"""Verifying fewer tokens at once saves less than it costs."""
MIN_SAVED = 0.25
"""Steps saved by forced tokens, for each sequence of a batch: a step that verifies takes longer for all of them."""
MAX_FORCED = 384
"""Forced tokens in one step. Longer steps keep the others waiting, and GPUs have none recorded."""
SOURCE = "grammar"
"""Name of the drafter of forced tokens."""
OVER = Finish(FinishReason.STOP)


class TokenMatcher(Protocol):
    """A grammar at one place of a text."""

    @property
    def is_over(self) -> bool:
        """The text is complete and nothing may follow."""

    @property
    def fault(self) -> str:
        """Why it cannot be followed any further; empty if it can."""

    def advance(self, token_ids: Sequence[int]) -> None: ...

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next."""

    def fork(self) -> "TokenMatcher": ...


class Grammars(Protocol):
    """Compiles grammars for the vocabulary of one model. Threads may compile at the same time."""

    def compile(self, kind: str, source: str) -> Any:
        """A `TokenMatcher` at the beginning of a text. Raises RequestError for what cannot be used."""

    def fill(self, entries: Sequence[tuple[Any, tuple[int, ...]]], bits: memoryview, num_words: int) -> None:
        """Write a mask for each matcher as it stands, and one after each of its drafts, in rows of 32-bit words."""


class Compiled(NamedTuple):
    """The result of compiling a request's grammar."""

    request: Request
    matcher: TokenMatcher | None
    error: str
    seconds: float


@dataclass(slots=True)
class GrammarCounts:
    """Counted since the start."""

    num_compiled: int = 0
    num_refused: int = 0
    num_masks: int = 0
    num_forced: int = 0
    compile_s: float = 0.0
    mask_s: float = 0.0

    @property
    def num_asked(self) -> int:
        return self.num_compiled + self.num_refused


@dataclass(slots=True)
class GrammarTime:
    """What the grammar of one request has taken."""

    request_id: int
    compile_s: float
    mask_s: float = 0.0
    num_unended: int = 1
    """Choices that are still held to it."""


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The masks of one launch, made when the runner asks for them: by then the tokens before are known."""

    chunks: tuple[int, ...]
    entries: tuple[tuple[TokenMatcher, tuple[int, ...]], ...]
    times: tuple[GrammarTime, ...]
    """Of the requests that the entries belong to."""
    state: "GrammarState"

    @property
    def num_rows(self) -> int:
        return sum(1 + len(drafts) for _, drafts in self.entries)

    def fill(self, bits: memoryview) -> None:
        state, num_rows, flat = self.state, self.num_rows, bits.cast("B")
        begin_s = state.clock()
        state.grammars.fill(self.entries, flat, len(flat) // (num_rows * WORD_BYTES))
        seconds = state.clock() - begin_s
        state.counts.num_masks += num_rows
        state.counts.mask_s += seconds
        for time, (_, drafts) in zip(self.times, self.entries, strict=True):
            time.mask_s += seconds * (1 + len(drafts)) / num_rows


@dataclass(slots=True)
class GrammarState:
    """Belongs to the engine's thread, but for compiling. Without `executor` a grammar is compiled where it is asked for."""

    grammars: Grammars
    clock: Callable[[], float]
    executor: Executor | None = None
    counts: GrammarCounts = field(default_factory=GrammarCounts)
    _matchers: dict[tuple[int, int], TokenMatcher] = field(default_factory=dict)
    _compiling: dict[int, Request] = field(default_factory=dict)
    _forced: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    _times: dict[int, GrammarTime] = field(default_factory=dict)
    _ended: list[GrammarTime] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Some sequence is held to a grammar."""
        return bool(self._matchers)

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling)

    # Before they are scheduled

    def compile(self, request: Request, report: Callable[[Compiled], None]) -> None:
        """Compile a request's grammar and report the result, from another thread if there is one."""
        self._compiling[request.request_id] = request
        if self.executor is None:
            report(self._compile(request))
        else:
            self.executor.submit(lambda: report(self._compile(request)))

    def cancel(self, request_id: int) -> Request | None:
        """Cancel a request whose grammar is being compiled; None if there is no such request."""
        return self._compiling.pop(request_id, None)

    def take(self, compiled: Compiled) -> bool:
        """Hold a request's choices to what was compiled; False if the request was cancelled meanwhile."""
        if self._compiling.pop(compiled.request.request_id, None) is None:
            return False
        self.counts.compile_s += compiled.seconds
        if compiled.matcher is None:
            self.counts.num_refused += 1
            return True
        self.counts.num_compiled += 1
        request = compiled.request
        self._times[request.request_id] = GrammarTime(
            request.request_id, compiled.seconds, num_unended=request.params.n
        )
        for choice in range(request.params.n):
            matcher = compiled.matcher.fork()
            if request.resumed:
                matcher.advance(request.resumed[choice])
            self._matchers[request.request_id, choice] = matcher
        return True

    def drop(self, request: Request) -> None:
        self._times.pop(request.request_id, None)
        for choice in range(request.params.n):
            self._matchers.pop((request.request_id, choice), None)

    def _compile(self, request: Request) -> Compiled:
        begin_s = self.clock()
        grammar = request.params.grammar or Grammar("", "")
        try:
            matcher, error = self.grammars.compile(grammar.kind, grammar.source), ""
        except RequestError as refusal:
            matcher, error = None, str(refusal)
        except Exception as failure:  # a fault of a grammar is a fault of its own request
            matcher, error = None, f"the grammar could not be compiled: {type(failure).__name__}"
        return Compiled(request, matcher, error, self.clock() - begin_s)

    # In a step

    def masks(self, batch: Batch, scheduler: Scheduler) -> StepMasks | None:
        """The masks that a launch of these chunks needs; None if it needs none."""
        by_row = {sequence.row: sequence for sequence in scheduler.flights.sequences(batch)}
        chunks: list[int] = []
        entries: list[tuple[TokenMatcher, tuple[int, ...]]] = []
        times: list[GrammarTime] = []
        for index, chunk in enumerate(batch.chunks):
            sequence = by_row.get(chunk.row)
            if not chunk.samples or sequence is None:
                continue
            matcher = self._matchers.get((sequence.request_id, sequence.choice))
            if matcher is not None:
                chunks.append(index)
                entries.append((matcher, chunk.drafts))
                times.append(self._times[sequence.request_id])
        if not entries:
            return None
        return StepMasks(tuple(chunks), tuple(entries), tuple(times), self)

    def propose(self, scheduler: Scheduler, depth: int) -> None:
        """Where only one text can come next, its tokens are drafts that cannot be wrong; the last is drawn after them.

        With `depth` steps in flight some of the tokens are drawn there, and a sequence leaves as many steps out while its
        drafts are verified. A GPU that keeps several in flight replays recorded steps: drafts beside prompts would make steps
        of sizes that nothing else has, and their recording costs more than forced tokens save.
        """
        if depth > 1 and (scheduler.num_waiting or scheduler.prompts):
            self._forced.clear()
            return
        least = MIN_FORCED + 2 * (depth - 1)
        forced = {key: token_ids for key, token_ids in self._forced.items() if len(token_ids) >= least}
        self._forced.clear()
        num_saved = sum(len(token_ids) - least + 1 for token_ids in forced.values())
        if num_saved < MIN_SAVED * scheduler.num_running:
            return  # what still is forced then comes up again with the next token
        most, room = max(least, MAX_FORCED // max(len(forced), 1)), MAX_FORCED
        for key, token_ids in forced.items():
            if room >= least:
                num_drafts = scheduler.propose(*key, token_ids[:-1][: min(most, room)], SOURCE)
                self.counts.num_forced += num_drafts
                room -= num_drafts

    def follow(self, deltas: tuple[Delta, ...], scheduler: Scheduler) -> tuple[Delta, ...]:
        """Advance over reported tokens. A choice that has completed its grammar, or cannot follow it, ends."""
        followed: list[Delta] = []
        for delta in deltas:
            key = (delta.request_id, delta.choice)
            matcher = self._matchers.get(key)
            followed.append(delta if matcher is None else self._follow(delta, matcher, scheduler))
            if followed[-1].finish is not None and self._matchers.pop(key, None) is not None:
                self._end(delta.request_id)
        return tuple(followed)

    def ended(self) -> tuple[GrammarTime, ...]:
        """What the grammars of requests took that have ended since this was last asked."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def _end(self, request_id: int) -> None:
        time = self._times[request_id]
        time.num_unended -= 1
        if not time.num_unended:
            self._ended.append(self._times.pop(request_id))

    def _follow(self, delta: Delta, matcher: TokenMatcher, scheduler: Scheduler) -> Delta:
        if delta.finish is not None and delta.finish.reason is FinishReason.ERROR:
            return delta._replace(finish=_broken(matcher)) if matcher.fault else delta
        num_taken = _advance(matcher, delta.token_ids)
        if num_taken < len(delta.token_ids):
            # Drafts that were accepted beyond the end of the text: without them it would have ended there.
            delta = delta._replace(token_ids=delta.token_ids[:num_taken], logprobs=delta.logprobs[:num_taken])
            return delta._replace(finish=OVER) if delta.finish is not None else _ended(delta, scheduler, OVER)
        if delta.finish is not None:
            return delta
        if matcher.fault:
            return _ended(delta, scheduler, _broken(matcher))
        if matcher.is_over:
            return _ended(delta, scheduler, OVER)
        forced = matcher.forced()
        if len(forced) >= MIN_FORCED:
            self._forced[delta.request_id, delta.choice] = forced
        return delta


def _advance(matcher: TokenMatcher, token_ids: tuple[int, ...]) -> int:
    """How many of the tokens it took to complete the text: all of them where it is not complete, or only with the last."""
    if len(token_ids) < 2:
        matcher.advance(token_ids)
        return len(token_ids)
    for count, token in enumerate(token_ids, 1):
        matcher.advance((token,))
        if matcher.is_over and not matcher.fault:
            return count
    return len(token_ids)


def _broken(matcher: TokenMatcher) -> Finish:
    return Finish(FinishReason.ERROR, matcher.fault, Fault.REQUEST)


def _ended(delta: Delta, scheduler: Scheduler, finish: Finish) -> Delta:
    """The sequence ends with this delta."""
    scheduler.end(delta.request_id, finish, delta.choice)
    return delta._replace(finish=finish)
