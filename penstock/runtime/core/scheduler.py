"""Decides what each step computes, and what came of it.

Pure: no tensor, no clock, no I/O. The engine's loop, a test and the simulator drive the same object:

    schedule(now) -> Batch          what to compute next; may be called again before earlier batches are committed
    commit(batch, output, now)      in the order of launching
    abandon(batch)                  instead, in the reverse order: its tokens are planned again

What a step computes is put together by `plan`; who waits and who is inside is written in `roster`; which steps are on their
way in `flights`. Here requests come and end, and results are taken in.
"""

from typing import ClassVar, NamedTuple

from penstock.errors import CapacityError, RequestError
from penstock.runtime.core.batch import (
    NO_TOKEN_LEFT,
    Batch,
    Chunk,
    Delta,
    Drafted,
    Fault,
    Finish,
    FinishReason,
    StepOutput,
    make,
)
from penstock.runtime.core.flights import Flights
from penstock.runtime.core.kinds.pool import make_pool
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.plan import Preemption, StepPlan
from penstock.runtime.core.prefix import Holding, Namespace
from penstock.runtime.core.queue.batching import CONTINUOUS, Batching, MixedSteps
from penstock.runtime.core.queue.deadlines import Deadlines
from penstock.runtime.core.queue.order import Order, Queue, by_arrival
from penstock.runtime.core.queue.roster import Roster
from penstock.runtime.core.request import Request
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.core.tenants.shares import sole_tenant

MISSED_DEADLINE = Finish(FinishReason.ERROR, "the deadline passed before the answer was complete", Fault.DEADLINE)
CANCELLED = Finish(FinishReason.CANCELLED)


class SchedulerLoad(NamedTuple):
    """How busy a scheduler is, at one moment."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    kv_usage_fraction: float
    num_preemptions: int


class Scheduler:
    """Sole writer of sequences and queues. Every sequence added ends in exactly one `Finish`."""

    roster_type: ClassVar[type[Roster]] = Roster
    plan_type: ClassVar[type[StepPlan]] = StepPlan

    def __init__(
        self,
        limits: Limits,
        order: Order | None = None,
        batching: Batching = CONTINUOUS,
        mixed: MixedSteps | None = None,
    ) -> None:
        self.limits = limits
        self.mixed = mixed
        """What makes steps shorter while answers go on; without it all have the same budget."""
        self.pool = make_pool(limits)
        self.roster = self.roster_type(limits, self.pool, order if order is not None else Queue(by_arrival), batching)
        self.flights = Flights()
        self.num_preemptions = 0
        self.preemptions: tuple[Preemption, ...] = ()
        """Of the last step."""
        self.lacks = ""
        """What the first in order waited for in the last step."""
        self.yields = False
        """The last step may be abandoned when a request comes: it has batch sequences alone, or one tenant has all of it."""
        self.sole_tenant: str | None = None
        """The tenant that has all of it; its own requests interrupt nothing."""
        self.is_shared = False
        """The last step was short because several tenants have work, or had some lately."""
        self._order = self.roster.order
        self._requests: dict[int, list[Sequence]] = {}
        self._deadlines = Deadlines(self._requests)
        self._num_added = 0

    # Queries

    @property
    def load(self) -> SchedulerLoad:
        roster = self.roster
        num_waiting = 0 if roster.waiting_since is None else len(self._order) - roster.num_batch_waiting
        usage_fraction = self.pool.usage_fraction
        return SchedulerLoad(
            len(roster.running), num_waiting, roster.num_waiting_tokens, usage_fraction, self.num_preemptions
        )

    @property
    def num_running(self) -> int:
        return len(self.roster.running)

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
        behind = self.roster.behind
        if not behind:
            return ()
        firsts = [sequence for sequence in behind if not sequence.choice]
        return tuple([(sequence.request_id, sequence.num_computed, sequence.num_prompt) for sequence in firsts])

    @property
    def wake_s(self) -> float | None:
        """The next time at which `expire` or `schedule` has something to do even if nothing happens: a deadline, or a batch
        that opens."""
        deadline_s = self._deadlines.next_s
        opens_s = None if self.roster.running else self.roster.opens_s
        if deadline_s is None or opens_s is None:
            return opens_s if deadline_s is None else deadline_s
        return min(deadline_s, opens_s)

    @property
    def generating(self) -> list[Sequence]:
        """Sequences that draw a token in every step. Those without pending drafts can be given some."""
        return [one for one in self.roster.running if one.holds_next and not one.num_verifying]

    def check(self) -> None:
        """Raise RuntimeError if any book does not balance. Costs O(blocks)."""
        self.pool.check([sequence.holding for sequence in self.roster.running])
        self.roster.check()

    # Commands

    def resize(self, limits: Limits) -> None:
        """Plan steps of other sizes from now on; nothing else of the limits changes."""
        self.limits = limits

    def add(self, request: Request, now: float, hashes: list[bytes] | None = None) -> None:
        """Queue a request. Raises RequestError for what could never run, CapacityError when too much waits already. `hashes`:
        those of its prompt's blocks, if somebody has computed them."""
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id} is in use; ids are never reused", param="request_id")
        limit = self.limits.longest(request)
        num_choices = request.params.n
        roster = self.roster
        num_free_rows = max(self.limits.max_sequences - len(roster.running) + len(roster.batch), 0)
        num_waiting, most = len(roster.order) - roster.num_batch_waiting, self.limits.max_waiting
        if request.is_batch:  # batch requests have limits of their own, half as large
            num_waiting, most, num_free_rows = roster.num_batch_waiting, max(most // 2, num_choices), 0
        if num_waiting + num_choices > most + num_free_rows:
            most += num_free_rows
            raise CapacityError(f"{num_waiting:,} requests wait already, of at most {most:,}; try later")
        num_tokens = roster.num_waiting_tokens
        is_too_much = num_tokens + len(request.prompt) > self.limits.max_waiting_tokens
        if num_tokens and is_too_much and not request.is_batch:
            raise CapacityError(
                f"{num_tokens:,} prompt tokens wait already, of at most {self.limits.max_waiting_tokens:,}; try later"
            )
        roster.now = now
        self._num_added += 1
        choices = [Sequence(request, choice, self._num_added, limit) for choice in range(num_choices)]
        self._requests[request.request_id] = choices
        if request.deadline_s is not None:
            self._deadlines.add(request.deadline_s, request.request_id)
        first, *others = choices
        first.holding.hashes = hashes or []
        roster.wait(first)
        if roster.batching.joins and not request.resumed:
            first.siblings = tuple(others)
        else:
            for sequence in others:
                roster.wait(sequence)

    def cancel(self, request_id: int, choice: int | None = None) -> tuple[Delta, ...]:
        """End a request, or one choice of it, in whatever state it is. Unknown ids, ended ones among them, give nothing."""
        return self.end(request_id, CANCELLED, choice)

    def end(self, request_id: int, finish: Finish, choice: int | None = None) -> tuple[Delta, ...]:
        """End every choice of a request, or one, that has not ended yet, for a reason that the driver knows: its text is
        complete, or cannot be continued."""
        choices = [
            sequence
            for sequence in self._requests.get(request_id, ())
            if sequence.finish is None and choice in (None, sequence.choice)
        ]
        for sequence in choices:
            sequence.siblings = tuple([sibling for sibling in sequence.siblings if sibling not in choices])
        return tuple(self._finish(sequence, finish) for sequence in choices)

    def propose(self, request_id: int, choice: int, token_ids: tuple[int, ...], source: str) -> int:
        """Tokens that must come next in a sequence, as the driver knows; its next step verifies them as drafts.

        Returns how many it will verify: tokens of steps in flight are drawn there, and a sequence that does not run has no
        step.
        """
        for sequence in self._requests.get(request_id, ()):
            if sequence.choice == choice and sequence.row is not None and not sequence.num_verifying:
                sequence.drafts, sequence.draft_source = token_ids[sequence.num_pending :], source
                return len(sequence.drafts)
        return 0

    def expire(self, now: float) -> tuple[Delta, ...]:
        """End the requests whose deadline has passed."""
        self.roster.now = now
        if not self._deadlines:
            return ()
        deltas: list[Delta] = []
        for request_id in self._deadlines.missed(now):
            deltas.extend(self.end(request_id, MISSED_DEADLINE))
        return tuple(deltas)

    def adopt(self, request: Request) -> int:
        """KV of a prompt arrived from elsewhere: publish its full blocks. Returns how many tokens that is: 0 if the cache
        has no room or caches no prefixes. States and windows do not come from elsewhere."""
        holding = Holding([*request.prompt, 0], Namespace(request.salt, request.adapter))
        if not self.pool.groups.is_plain or len(request.prompt) < self.limits.block_size:
            return 0
        self.pool.arrive(holding, spare=self.num_running)
        num_tokens = len(holding.blocks) * self.limits.block_size
        if num_tokens:
            self.pool.land(holding, is_whole=True)
        return num_tokens

    def draft(self, sequence: Sequence, token_ids: tuple[int, ...], source: str) -> None:
        """Drafts for a sequence whose tokens are all known, to be verified in its next step as far as there is room."""
        sequence.drafts = token_ids
        sequence.draft_source = source

    def schedule(self, now: float) -> Batch | None:
        """The next step's work, or None if there is none."""
        self.roster.now = now
        self.pool.unpin_expired(now)
        plan = self.plan_type(self.limits, self.pool, self.roster, self.mixed)
        plan.fill()
        self.preemptions, self.lacks, self.is_shared = plan.preemptions, plan.lacks, plan.is_shared
        self.sole_tenant = None if plan.is_shared or plan.is_batch_lane else sole_tenant(self.roster)
        self.yields = plan.is_batch_lane or self.sole_tenant is not None
        self.num_preemptions += len(plan.preemptions)
        if not plan.chunks:
            return None
        step = self.flights.launch(plan.sequences, self.roster.num_epochs)
        num_shared = self.pool.num_shared * self.limits.block_size
        return Batch(step, tuple(plan.chunks), tuple(plan.copies), num_shared)

    def commit(self, batch: Batch, output: StepOutput, now: float) -> tuple[Delta, ...]:
        """Commit a step's results: advance its sequences, publish full blocks, return the new tokens as deltas."""
        self.roster.now = now
        deltas: list[Delta] = []
        failures = dict(output.failures)
        has_tokens_only = output.has_tokens_only
        chunks, (sequences, last_epoch) = batch.chunks, self.flights.land(batch.step)
        order, block_size = self._order, self.limits.block_size
        counts_service, has_newcomers = order.counts_service, self.roster.num_epochs > last_epoch
        for index in failures:
            self._retract(sequences[index], last_epoch, chunks[index])
        for index, sequence, drawn in zip(range(len(chunks)), sequences, output.tokens, strict=True):
            if sequence.row is None or (has_newcomers and sequence.epoch > last_epoch):
                continue  # it left after the launch; the result is dropped
            known = sequence.tokens
            num_known = len(known)
            if (
                has_tokens_only
                and len(drawn) == 1
                and num_known < sequence.limit - 1
                and (token := drawn[0]) not in sequence.stop_ids
                and sequence.is_prefix_reported
                and not (sequence.siblings or sequence.num_verifying)
            ):
                # The usual case first: all its tokens are computed, it has the next one and continues.
                known.append(token)
                sequence.num_computed = num_known
                delta = make(Delta, (sequence.request_id, sequence.choice, drawn, None, (), (), None, ()))
                is_usual, fills_block = True, not num_known % block_size
            else:
                if index in failures or (chunks[index].samples and not drawn):
                    message = failures.get(index, "the model drew no token")
                    fault = Fault.REQUEST if message == NO_TOKEN_LEFT else Fault.ENGINE
                    deltas.append(self._finish(sequence, Finish(FinishReason.ERROR, message, fault)))
                    continue
                delta = self._advance(sequence, chunks[index], output, index)
                is_usual = False
                fills_block = sequence.num_computed >= (sequence.holding.num_published + 1) * block_size
            if counts_service and delta.token_ids:
                order.charge(sequence, len(delta.token_ids))
            if fills_block:
                self.pool.publish(sequence.holding, sequence.num_computed)
            if is_usual or self._settle(sequence, delta):
                deltas.append(delta)
        if self.roster.behind:
            self.roster.catch_up()
        return tuple(deltas)

    def note_step(self, batch: Batch, seconds: float) -> None:
        """A step took so long."""
        if self.mixed is not None:
            self.mixed.note(sum([chunk.length == 1 for chunk in batch.chunks]), batch.num_tokens, seconds)

    def abandon(self, batch: Batch) -> None:
        """A step was interrupted before it drew anything, and every step launched after it is abandoned already.

        Sequences that were to continue are where they were; those with a part of their prompt in it are preempted.
        """
        sequences, last_epoch = self.flights.land(batch.step)
        for chunk, sequence in zip(batch.chunks, sequences, strict=True):
            is_prompt = len(chunk.token_ids) > chunk.num_drafts
            if is_prompt:
                self._retract(sequence, last_epoch, chunk)
            if not sequence.is_inside_since(last_epoch):
                continue
            if is_prompt or self.pool.groups.num_states:
                self.roster.preempt(sequence)
                continue
            sequence.num_launched, sequence.num_verifying = chunk.start, 0
            self.pool.trim(sequence.holding, len(chunk.new_blocks), tuple(map(len, chunk.others)))

    # Committing results

    def _advance(self, sequence: Sequence, chunk: Chunk, output: StepOutput, index: int) -> Delta:
        """Give a sequence what a step computed and drew for it; returns what its client is told. That may be nothing."""
        drawn = output.tokens[index]
        sequence.num_computed = max(sequence.num_computed, chunk.end)
        if chunk.num_drafts:
            # Positions of rejected drafts are computed again, with the tokens that were drawn instead.
            first = chunk.end - chunk.num_drafts
            sequence.num_computed = sequence.num_launched = first + len(drawn) - 1
            sequence.num_verifying = 0
            if len(drawn) <= chunk.num_drafts and self.pool.revert_state(sequence.holding):
                sequence.num_again = sequence.num_launched - chunk.start
        finish = None
        num_accepted = len(drawn) - 1
        if drawn:
            drawn, finish = sequence.append(drawn)
        drafts: tuple[Drafted, ...] = ()
        if chunk.num_drafts:
            drafts = (Drafted(chunk.num_drafts, min(num_accepted, len(drawn)), sequence.draft_source),)
        if output.drafts and not sequence.num_pending:
            sequence.drafts = output.drafts[index]
        logprobs = output.logprobs[index][: len(drawn)] if output.logprobs else ()
        prompt_logprobs = (
            sequence.unreported_prompt_logprobs(chunk, output.prompt_logprobs[index]) if output.prompt_logprobs else ()
        )
        if finish is None and not drawn and not prompt_logprobs:
            return Delta(sequence.request_id, sequence.choice, ())
        return sequence.report(drawn, finish, logprobs, prompt_logprobs, drafts)

    def _settle(self, sequence: Sequence, delta: Delta) -> bool:
        """What a sequence's progress means for others: pins of its prompt, siblings that waited for it, its end. Returns
        whether its client is told something."""
        request = sequence.request
        if request.pins and delta.token_ids and not sequence.choice:
            num_before = len(sequence.tokens) - len(delta.token_ids)
            if num_before == sequence.num_prompt + (len(request.resumed[0]) if request.resumed else 0):
                self._pin_prompt(request)
        if delta.finish is not None:
            self._leave(sequence, delta.finish)
        elif sequence.siblings and not sequence.is_behind:
            self._let_siblings_wait(sequence)
        return bool(delta.token_ids or delta.prompt_logprobs or delta.finish)

    def _pin_prompt(self, request: Request) -> None:
        """Its prompt is computed: pin what it asked to keep."""
        holding = Holding(list(request.prompt), Namespace(request.salt, request.adapter))
        for num_tokens, ttl_s in request.pins:
            match = self.pool.match(holding, num_tokens // self.limits.block_size)
            self.pool.pin(match, self.roster.now + ttl_s)

    def _retract(self, sequence: Sequence, last_epoch: int, chunk: Chunk) -> None:
        """A chunk was not computed: sequences that took its blocks as cached are preempted and compute them again."""
        lost = self.pool.retract(sequence.holding, chunk.start // self.limits.block_size)
        trusting = [one for one in self.roster.running if not lost.isdisjoint(one.blocks)] if lost else []
        for one in trusting:
            if one is not sequence or one.epoch > last_epoch:
                self.roster.preempt(one)

    # Ending

    def _let_siblings_wait(self, sequence: Sequence) -> None:
        """The prompt they share is computed, or will never be by this sequence: its siblings continue on their own."""
        siblings, sequence.siblings = sequence.siblings, ()
        for sibling in siblings:
            if sibling.finish is None:
                sibling.parent = sequence
                self.roster.wait(sibling)

    def _finish(self, sequence: Sequence, finish: Finish) -> Delta:
        """End a sequence between two results."""
        self._leave(sequence, finish)
        return sequence.report((), finish, (), ())

    def _leave(self, sequence: Sequence, finish: Finish) -> None:
        sequence.finish = finish
        if sequence.is_running:
            self.roster.leave(sequence)
        elif sequence.is_waiting:
            self.roster.give_up(sequence)
        self._let_siblings_wait(sequence)
        request_id = sequence.request_id
        if all(choice.finish for choice in self._requests[request_id]):
            del self._requests[request_id]
