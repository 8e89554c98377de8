"""Decides what each step computes, and what came of it.

Pure: no tensor, no clock, no I/O. The engine's loop, a test and the simulator drive the same object:

    schedule(now) -> Batch          what to compute next; may be called again before earlier batches are committed
    commit(batch, output, now)      in the order of launching

There is no prefill phase and no decode phase. A sequence has positions whose KV is not computed yet; a chunk is a run of
them, and a step is filled with chunks up to one token budget, those of length one first.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.core.batch import (
    Arrival,
    Batch,
    Chunk,
    Delta,
    Fault,
    Finish,
    FinishReason,
    Logprob,
    PrefixHit,
    StepOutput,
)
from penstock.core.batching import CONTINUOUS, Batching
from penstock.core.blocks import BlockPool, Match
from penstock.core.limits import Limits
from penstock.core.order import Order, Queue, by_arrival
from penstock.core.request import Request
from penstock.core.sequence import Sequence
from penstock.errors import CapacityError, RequestError

MISSED_DEADLINE = Finish(FinishReason.ERROR, "the deadline passed before the answer was complete", Fault.DEADLINE)
CANCELLED = Finish(FinishReason.CANCELLED)
WHOLE_PROMPT = Match((), "prompt log probabilities need the whole prompt computed")
MAX_IDLE_DEADLINES = 64


class Load(NamedTuple):
    """How busy a scheduler is, at one moment."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    kv_usage_fraction: float
    num_preemptions: int


class Scheduler:
    """Sole writer of sequences and queues. Every sequence added ends in exactly one `Finish`."""

    def __init__(self, limits: Limits, order: Order | None = None, batching: Batching = CONTINUOUS) -> None:
        self.limits = limits
        self.pool = BlockPool(
            limits.num_blocks,
            limits.block_size,
            caching=limits.prefix_caching,
            num_kept_blocks=limits.num_kept_blocks,
        )
        self.num_preemptions = 0
        self._order: Order = order if order is not None else Queue(by_arrival)
        self._batching = batching
        self._running: dict[Sequence, None] = {}
        self._present: dict[Sequence, None] = {}
        """Those running that are not away."""
        self._is_ordered = True
        """They stand in the order of admission."""
        self._rows = list(range(limits.max_sequences - 1, -1, -1))
        self._requests: dict[int, list[Sequence]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._flights: dict[int, list[tuple[Sequence, int]]] = {}
        self._waiting_since: float | None = None
        self._num_waiting_tokens = 0
        self._num_added = 0
        self._num_entered = 0
        self._step = 0
        self._now = 0.0
        """The time last told."""

    # Queries

    @property
    def load(self) -> Load:
        return Load(
            num_running=len(self._running),
            num_waiting=len(self._order),
            num_waiting_tokens=self._num_waiting_tokens,
            kv_usage_fraction=self.pool.usage_fraction,
            num_preemptions=self.num_preemptions,
        )

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._order)

    @property
    def has_work(self) -> bool:
        """Some request has not ended."""
        return bool(self._requests)

    @property
    def prompts(self) -> tuple[tuple[int, int, int], ...]:
        """Prompts partly computed: request id, tokens done, tokens in all."""
        behind = [sequence for sequence in self._running if sequence.num_computed < sequence.num_prompt]
        return tuple(
            (sequence.request.request_id, sequence.num_computed, sequence.num_prompt)
            for sequence in behind
            if not sequence.choice
        )

    @property
    def wake_s(self) -> float | None:
        """When `expire` or `schedule` has something to do even if nothing happens: a deadline, or a batch that opens."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self._waiting_since is not None and not self._running:
            times.append(self._opens_s(self._waiting_since))
        return min(times, default=None)

    def live(self, batch: Batch) -> tuple[int, ...]:
        """Which chunks of a launched batch are of sequences that have not left since."""
        flight = self._flights[batch.step]
        return tuple(index for index, (sequence, stay) in enumerate(flight) if sequence.stay == stay)

    def check(self) -> None:
        """Raise RuntimeError if any book does not balance. Costs O(blocks)."""
        self.pool.check(self._running)
        rows = [sequence.row for sequence in self._running] + self._rows
        if sorted(row for row in rows if row is not None) != list(range(self.limits.max_sequences)):
            raise RuntimeError("rows of running sequences and free rows do not add up")
        away = {sequence for sequence in self._running if sequence.steps_ahead and sequence.num_verifying}
        if away != self._running.keys() - self._present.keys():
            raise RuntimeError("who is away and who is present do not add up to who is running")
        held = [sequence for sequence in self._order if sequence.blocks or sequence.is_running]
        if held:
            raise RuntimeError(f"waiting sequences hold blocks or rows: {held}")
        waiting_tokens = sum(len(sequence.tokens) for sequence in self._order)
        if waiting_tokens != self._num_waiting_tokens:
            raise RuntimeError(f"{waiting_tokens} tokens wait but {self._num_waiting_tokens} are counted")

    # Commands

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises RequestError for what could never run, CapacityError when too much waits already."""
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id} is in use; ids are never reused", param="request_id")
        limit = self.limits.longest(request)
        num_choices = request.params.n
        if len(self._order) + num_choices > self.limits.max_waiting:
            raise CapacityError(
                f"{len(self._order):,} requests wait already, of at most {self.limits.max_waiting:,}; try later"
            )
        if self._num_waiting_tokens and self._num_waiting_tokens + len(request.prompt) > self.limits.max_waiting_tokens:
            raise CapacityError(
                f"{self._num_waiting_tokens:,} prompt tokens wait already, of at most "
                f"{self.limits.max_waiting_tokens:,}; try later"
            )
        self._now = now
        self._num_added += 1
        choices = [Sequence(request, choice, self._num_added, limit) for choice in range(num_choices)]
        self._requests[request.request_id] = choices
        if request.deadline_s is not None:
            heappush(self._deadlines, (request.deadline_s, request.request_id))
            self._forget_deadlines()
        first, *others = choices
        self._wait(first)
        if self._batching.joins:
            first.siblings = others
        else:
            for sequence in others:
                self._wait(sequence)

    def cancel(self, request_id: int, choice: int | None = None) -> tuple[Delta, ...]:
        """End a request, or one choice of it, in whatever state it is. Unknown ids, ended ones among them, give nothing."""
        return self._end(request_id, CANCELLED, choice)

    def expire(self, now: float) -> tuple[Delta, ...]:
        """End the requests whose deadline has passed."""
        self._now = now
        deltas: list[Delta] = []
        while self._deadlines:
            deadline_s, request_id = self._deadlines[0]
            if deadline_s > now and request_id in self._requests:
                break
            heappop(self._deadlines)
            deltas.extend(self._end(request_id, MISSED_DEADLINE))
        return tuple(deltas)

    def pin(self, request: Request, until_s: float) -> int:
        """Keep what is cached of a request's prompt until then; returns how many tokens that is."""
        match = self.pool.match(Sequence(request, 0, 0, 0))
        self.pool.pin(match, until_s)
        return len(match.blocks) * self.limits.block_size

    def adopt(self, request: Request) -> int:
        """Keys and values of a prompt came from elsewhere: offer its full blocks to whoever begins alike.

        Returns how many tokens that is: 0 if the cache has no room or caches no prefixes.
        """
        if not self.limits.prefix_caching:
            return 0
        sequence = Sequence(request, 0, 0, 0)
        num_tokens = sequence.num_prompt // self.limits.block_size * self.limits.block_size
        if not num_tokens or not self.pool.reserve(sequence, num_tokens, self.pool.match(sequence), len(self._running)):
            return 0
        self.pool.publish(sequence, num_tokens)
        self.pool.release(sequence)
        return num_tokens

    def schedule(self, now: float) -> Batch | None:
        """The next step's work, or None if there is none to do."""
        self._now = now
        self.pool.unpin_expired(now)
        plan = Plan(self.limits.max_batch_tokens)
        prompts = self._plan_decodes(plan)
        self._plan_prompts(plan, prompts)
        self._admit(plan, now)
        if not plan.chunks:
            return None
        self._step += 1
        self._flights[self._step] = [(sequence, sequence.stay) for sequence in plan.chunks]
        return Batch(self._step, tuple(plan.chunks.values()), tuple(plan.copies))

    def commit(self, batch: Batch, output: StepOutput, now: float, ahead: tuple[int, ...] = ()) -> tuple[Delta, ...]:
        """Take in a step's results: advance its sequences, publish full blocks, tell what is new.

        `ahead` says for each chunk how many steps its sequence goes on by itself after its next.
        """
        self._now = now
        deltas: list[Delta] = []
        failures = dict(output.failures)
        has_tokens_only = not (ahead or failures or output.drafts or output.logprobs or output.prompt_logprobs)
        chunks, tokens = batch.chunks, output.tokens
        for index in failures:
            self._retract(*self._flights[batch.step][index], chunks[index])
        for index, (sequence, stay) in enumerate(self._flights.pop(batch.step)):
            if sequence.stay != stay:
                continue  # it left after the launch; what was computed for it is nobody's
            delta = self._go_on(sequence, chunks[index], tokens[index]) if has_tokens_only else None
            if delta is not None:
                deltas.append(delta)
                continue
            if index in failures:
                deltas.append(self._finish(sequence, Finish(FinishReason.ERROR, failures[index], Fault.ENGINE)))
                continue
            sequence.steps_ahead = ahead[index] if ahead else 0
            delta = self._advance(sequence, chunks[index], output, index)
            if delta is not None:
                deltas.append(delta)
            if sequence.siblings and sequence.num_computed >= sequence.num_prompt:
                self._let_siblings_wait(sequence)
        return tuple(deltas)

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """A launched batch as batches of one chunk, to be committed each when it is done: sequences go ahead by different
        numbers of steps. Copies are due before the first."""
        copies = batch.copies
        parts = []
        for chunk, entry in zip(batch.chunks, self._flights.pop(batch.step), strict=True):
            self._step += 1
            self._flights[self._step] = [entry]
            parts.append(Batch(self._step, (chunk,), copies))
            copies = ()
        return tuple(parts)

    # Planning a step

    def _plan_decodes(self, plan: "Plan") -> list[Sequence]:
        """Give every sequence that holds its next token one position, and drafts as the budget allows.

        Returns those that are behind: prompts to compute.
        """
        running = list(self._present)
        if not self._is_ordered:
            running.sort(key=_place)
            self._present = dict.fromkeys(running)
            self._is_ordered = True
        plan.budget -= len(self._running) - len(running)
        if not self._batching.joins:
            prompts = [sequence for sequence in running if not sequence.holds_next]
            if prompts:
                return prompts  # a whole batch computes all its prompts before it generates
        prompts = []
        capacity = self.limits.block_size
        for index, sequence in enumerate(running):
            row = sequence.row
            if row is None or sequence.num_verifying:
                continue  # pushed out by one planned before it, or of unknown length until its drafts are judged
            if not sequence.holds_next:
                prompts.append(sequence)
                continue
            if len(sequence.tokens) + sequence.num_pending >= sequence.limit:
                continue  # its last token is on the way
            start = sequence.num_launched
            drafts = sequence.drafts and self._usable_drafts(sequence, plan.budget - (len(running) - index))
            num_drafts = len(drafts)
            if sequence.steps_ahead:
                num_drafts = min(sequence.steps_ahead, sequence.limit - len(sequence.tokens) - 1)
                sequence.num_verifying = num_drafts
            end = start + 1 + num_drafts
            num_held = len(sequence.blocks)
            new_blocks: tuple[int, ...] = ()
            if end > num_held * capacity:
                if not self._make_room(sequence, end, plan):
                    continue
                new_blocks = tuple(sequence.blocks[num_held:])
            if sequence.steps_ahead and num_drafts:
                del self._present[sequence]
            sequence.num_launched = end
            sequence.num_pending += 1
            plan.chunks[sequence] = Chunk(row, start, end - start, drafts, new_blocks, True, None, num_drafts)
            plan.budget -= 1 + len(drafts)
        return prompts

    def _usable_drafts(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """Drafts that fit the step's budget and, with one more token, the sequence's limit."""
        room = min(sequence.limit - len(sequence.tokens) - 1, budget)
        drafts = sequence.drafts[: max(room, 0)]
        sequence.drafts = ()
        sequence.num_verifying = len(drafts)
        return drafts

    def _plan_prompts(self, plan: "Plan", prompts: list[Sequence]) -> None:
        """Continue the prompts under way, first in rank first. Their blocks were reserved when they were admitted."""
        for sequence in sorted(prompts, key=self._order.rank):
            if plan.budget > 0 and sequence.row is not None:
                self._plan_prompt(plan, sequence, sequence.row)

    def _plan_prompt(self, plan: "Plan", sequence: Sequence, row: int) -> None:
        """As much of the known tokens not computed yet as the budget allows.

        Blocks that the chunk fills are offered at once: whoever is admitted from here on, in this very step too, takes them
        as cached instead of computing them again. A single token is no such chunk: see `engine.runner`.
        """
        start = sequence.num_launched
        end = min(len(sequence.tokens), start + plan.budget)
        arrival = None
        new_blocks: tuple[int, ...] = ()
        if not sequence.is_announced:
            params = sequence.request.params
            history = tuple(sequence.tokens[:start]) if params.reads_history else ()
            arrival = Arrival(params, sequence.choice, sequence.num_prompt, history, sequence.request.adapter)
            new_blocks = tuple(sequence.blocks)
            sequence.is_announced = True
        samples = end == len(sequence.tokens)
        token_ids = tuple(sequence.tokens[start:end])
        plan.chunks[sequence] = Chunk(row, start, end - start, token_ids, new_blocks, samples, arrival)
        plan.budget -= end - start
        sequence.num_launched = end
        if samples:
            sequence.holds_next = True
            sequence.num_pending = 1
        if end - start > 1:
            self.pool.publish(sequence, end)

    def _make_room(self, sequence: Sequence, num_tokens: int, plan: "Plan") -> bool:
        """Blocks for a running sequence, pushing others out if need be; False if it had to leave itself."""
        while not self.pool.reserve(sequence, num_tokens):
            if len(self._running) == 1 and self.pool.num_pinned:
                self.pool.unpin_all()  # it would leave, come back, and lose each time what is being computed for it
                continue
            victim = self._victim(sequence)
            plan.withdraw(victim)
            self._leave(victim)
            self._wait(victim)
            self.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _victim(self, needy: Sequence) -> Sequence:
        """Of those that rank after the needy one: the least important, then the cheapest to compute again. Or itself."""
        order = self._order
        own = order.rank(needy)
        candidates = [sequence for sequence in self._running if order.rank(sequence) > own]
        return max(candidates, key=lambda one: (order.tier(one), -one.num_computed, order.rank(one)), default=needy)

    # Admission

    def _admit(self, plan: "Plan", now: float) -> None:
        """Let waiting sequences in while there are rows, blocks and budget. Nobody overtakes the first in order."""
        is_whole = not self._batching.joins
        if self._waiting_since is None or (is_whole and self._running) or now < self._opens_s(self._waiting_since):
            return
        while self._rows and (is_whole or plan.budget > 0):
            sequence = self._order.peek()
            if sequence is None:
                return
            num_cached = self._claim(sequence, plan, is_whole)
            if num_cached is None:
                if self._running or not self.pool.num_pinned:
                    return
                self.pool.unpin_all()
                continue
            self._enter(sequence, num_cached)
            if plan.budget > 0 and sequence.row is not None:
                self._plan_prompt(plan, sequence, sequence.row)

    def _claim(self, sequence: Sequence, plan: "Plan", is_whole: bool) -> int | None:
        """Blocks for all tokens the sequence has; returns how many of them need no computing, None if there is no room.

        One block a running sequence is left over, so that those inside are not pushed out at once by those let in.
        """
        spare = 0 if is_whole else len(self._running)
        parent = sequence.parent
        if parent is not None and parent.row is not None and parent.num_computed >= sequence.num_prompt:
            fork = self.pool.fork(parent, sequence, sequence.num_prompt - 1, spare)
            if fork is None:
                return None
            plan.copies.extend(fork.copies)
            sequence.prefix = PrefixHit(fork.num_tokens, "", self._now)
            return fork.num_tokens
        match = WHOLE_PROMPT if sequence.wants_prompt_logprobs else self.pool.match(sequence)
        num_tokens = sequence.limit - 1 if is_whole else len(sequence.tokens)
        if not self.pool.reserve(sequence, num_tokens, match, spare):
            return None
        num_cached = len(match.blocks) * self.limits.block_size
        if sequence.prefix is None:
            sequence.prefix = PrefixHit(num_cached, match.miss, self._now)
        return num_cached

    def _enter(self, sequence: Sequence, num_cached: int) -> None:
        self._order.pop()
        if not sequence.stay:  # a charge may change who is first, so it comes after the pop
            self._order.charge(sequence, sequence.num_prompt - num_cached)
        sequence.is_waiting = False
        sequence.parent = None
        self._num_waiting_tokens -= len(sequence.tokens)
        if not len(self._order):
            self._waiting_since = None
        self._running[sequence] = self._present[sequence] = None
        self._num_entered += 1
        sequence.place = self._num_entered
        sequence.enter(self._rows.pop(), num_cached)

    def _opens_s(self, since: float) -> float:
        return self._batching.opens_s(since, is_full=len(self._order) >= self.limits.max_sequences)

    # Taking in results

    def _go_on(self, sequence: Sequence, chunk: Chunk, drawn: tuple[int, ...]) -> Delta | None:
        """The one thing that nearly always happens, in few words: a sequence has its next token and goes on.

        None, with nothing done, if something else happens.
        """
        known = sequence.tokens
        if len(drawn) != 1 or chunk.length != 1 or not sequence.is_prefix_told or sequence.siblings:
            return None
        if drawn[0] in sequence.stop_ids or len(known) + 1 >= sequence.limit or sequence.steps_ahead:
            return None
        known.append(drawn[0])
        sequence.num_pending -= 1
        computed = sequence.num_computed = chunk.start + 1
        self._order.charge(sequence, 1)
        if computed >= (sequence.num_published + 1) * self.limits.block_size:
            self.pool.publish(sequence, computed)
        return Delta(sequence.request.request_id, sequence.choice, drawn)

    def _advance(self, sequence: Sequence, chunk: Chunk, output: StepOutput, index: int) -> Delta | None:
        drawn = output.tokens[index]
        if chunk.samples and not drawn:
            return self._finish(sequence, Finish(FinishReason.ERROR, "the model drew no token", Fault.ENGINE))
        sequence.num_computed = chunk.end
        if chunk.num_drafts:
            # Positions of rejected drafts are computed again, with the tokens that were drawn instead.
            sequence.num_computed = sequence.num_launched = chunk.start + len(drawn)
            sequence.num_verifying = 0
            if sequence not in self._present:
                self._present[sequence] = None
                self._is_ordered = False
        finish = None
        if drawn:
            sequence.num_pending -= 1
            drawn, finish = self._append(sequence, drawn)
            self._order.charge(sequence, len(drawn))
        if output.drafts and not sequence.num_pending:
            sequence.drafts = output.drafts[index]
        if sequence.num_computed >= (sequence.num_published + 1) * self.limits.block_size:
            self.pool.publish(sequence, sequence.num_computed)
        logprobs = output.logprobs[index][: len(drawn)] if output.logprobs else ()
        prompt_logprobs = (
            sequence.untold_prompt_logprobs(chunk, output.prompt_logprobs[index]) if output.prompt_logprobs else ()
        )
        if finish is not None:
            return self._finish(sequence, finish, drawn, logprobs, prompt_logprobs)
        if not drawn and not prompt_logprobs:
            return None
        return self._delta(sequence, drawn, None, logprobs, prompt_logprobs)

    def _retract(self, sequence: Sequence, stay: int, chunk: Chunk) -> None:
        """A chunk was not computed: whoever took what it was to write as cached leaves, and comes back to compute it."""
        lost = self.pool.retract(sequence, chunk.start // self.limits.block_size)
        trusting = [one for one in self._running if not lost.isdisjoint(one.blocks)] if lost else []
        for one in trusting:
            if one is not sequence or one.stay != stay:
                self._leave(one)
                self._wait(one)

    def _append(self, sequence: Sequence, drawn: tuple[int, ...]) -> tuple[tuple[int, ...], Finish | None]:
        """Add drawn tokens up to the one that ends the sequence; returns those added and the end if there is one."""
        tokens = sequence.tokens
        if not sequence.stop_ids:
            drawn = drawn[: sequence.limit - len(tokens)]
            tokens.extend(drawn)
            if len(tokens) < sequence.limit:
                return drawn, None
            sequence.num_computed = min(sequence.num_computed, len(tokens) - 1)
            return drawn, Finish(FinishReason.LENGTH)
        for count, token in enumerate(drawn, 1):
            tokens.append(token)
            if token in sequence.stop_ids and len(tokens) > sequence.min_length:
                finish = Finish(FinishReason.STOP, stop_token_id=token)
            elif len(tokens) >= sequence.limit:
                finish = Finish(FinishReason.LENGTH)
            else:
                continue
            sequence.num_computed = min(sequence.num_computed, len(tokens) - 1)
            return drawn[:count], finish
        return drawn, None

    def _delta(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        finish: Finish | None,
        logprobs: tuple[Logprob, ...],
        prompt_logprobs: tuple[Logprob, ...],
    ) -> Delta:
        prefix = None
        if not sequence.is_prefix_told:
            prefix = sequence.prefix
            sequence.is_prefix_told = True
        request_id = sequence.request.request_id
        return Delta(request_id, sequence.choice, token_ids, finish, logprobs, prompt_logprobs, prefix)

    # Coming and going

    def _wait(self, sequence: Sequence) -> None:
        sequence.is_waiting = True
        self._order.push(sequence)
        self._num_waiting_tokens += len(sequence.tokens)
        if self._waiting_since is None:
            self._waiting_since = self._now

    def _leave(self, sequence: Sequence) -> None:
        """A running sequence gives everything back; its published blocks stay cached."""
        if sequence.row is not None:
            self._rows.append(sequence.row)
        del self._running[sequence]
        self._present.pop(sequence, None)
        self.pool.release(sequence)
        sequence.leave()

    def _let_siblings_wait(self, sequence: Sequence) -> None:
        """The prompt they share is computed, or never will be by this one: its siblings stand on their own."""
        siblings, sequence.siblings = sequence.siblings, []
        for sibling in siblings:
            if sibling.finish is None:
                sibling.parent = sequence
                self._wait(sibling)

    def _finish(
        self,
        sequence: Sequence,
        finish: Finish,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[Logprob, ...] = (),
        prompt_logprobs: tuple[Logprob, ...] = (),
    ) -> Delta:
        sequence.finish = finish
        if sequence.is_running:
            self._leave(sequence)
        elif sequence.is_waiting:
            self._order.remove(sequence)
            sequence.is_waiting = False
            self._num_waiting_tokens -= len(sequence.tokens)
            if not len(self._order):
                self._waiting_since = None
        self._let_siblings_wait(sequence)
        request_id = sequence.request.request_id
        if all(choice.finish for choice in self._requests[request_id]):
            del self._requests[request_id]
        return self._delta(sequence, token_ids, finish, logprobs, prompt_logprobs)

    def _forget_deadlines(self) -> None:
        """Drop those of requests that have ended, once they are most of the heap."""
        if len(self._deadlines) > 2 * len(self._requests) + MAX_IDLE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapify(self._deadlines)

    def _end(self, request_id: int, finish: Finish, choice: int | None = None) -> tuple[Delta, ...]:
        """End every choice of a request, or one, that has not ended yet."""
        choices = [
            sequence
            for sequence in self._requests.get(request_id, ())
            if sequence.finish is None and choice in (None, sequence.choice)
        ]
        for sequence in choices:
            sequence.siblings = [sibling for sibling in sequence.siblings if sibling not in choices]
        return tuple(self._finish(sequence, finish) for sequence in choices)


def _place(sequence: Sequence) -> int:
    return sequence.place


class Plan:
    """A step being put together."""

    __slots__ = ("budget", "chunks", "copies")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: dict[Sequence, Chunk] = {}
        self.copies: list[tuple[int, int]] = []

    def withdraw(self, sequence: Sequence) -> None:
        """Take back what was planned for a sequence that is pushed out."""
        chunk = self.chunks.pop(sequence, None)
        if chunk is not None:
            self.budget += chunk.length if chunk.token_ids else 1
