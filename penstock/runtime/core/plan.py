"""A step being planned: which tokens of which sequences it computes, within one token budget.

Decoding sequences come first, then prompts in progress, then waiting sequences that can be admitted. There is no other
difference between them: a sequence has positions whose KV is not computed yet, and a chunk is a run of them.
"""

from collections import Counter
from operator import itemgetter
from typing import NamedTuple

from penstock.runtime.core.batch import Arrival, Chunk, PrefixHit, make
from penstock.runtime.core.blocks import BlockPool, Match
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.batching import MixedSteps
from penstock.runtime.core.queue.roster import Roster
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.core.tenants.shares import Shares, share_step

WHOLE_PROMPT = Match((), "prompt log probabilities need the whole prompt computed")
MOST_AGAIN = 16
"""Tokens computed again and drafts after them, together: what wrong drafts cost a model with states."""


class Grown(NamedTuple):
    """What a chunk says of its sequence's blocks and state since the chunk before."""

    new_blocks: tuple[int, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()
    state: tuple[int, ...] = ()


class Preemption(NamedTuple):
    """Who left the running ones, for whom, and what there was too little of."""

    request_id: int
    choice: int
    needy_id: int
    needy_choice: int
    lacks: str


class StepPlan:
    """Made empty, filled by `fill`, and then a batch."""

    __slots__ = (
        "_limits",
        "_mixed",
        "_pool",
        "_roster",
        "_shares",
        "budget",
        "chunks",
        "copies",
        "is_batch_lane",
        "is_shared",
        "lacks",
        "preemptions",
        "sequences",
    )

    def __init__(self, limits: Limits, pool: BlockPool, roster: Roster, mixed: MixedSteps | None = None) -> None:
        self._limits = limits
        self._mixed = mixed
        self._pool = pool
        self._roster = roster
        self.budget = limits.max_batch_tokens
        self.sequences: list[Sequence] = []
        self.chunks: list[Chunk] = []
        """One for each of the sequences."""
        self.copies: list[tuple[int, int]] = []
        self.preemptions: tuple[Preemption, ...] = ()
        self.lacks = ""
        """What there is too little of for the first in order to come in; nothing if nobody waits."""
        self.is_shared = False
        """Several tenants have work, or had some lately: it is shorter than others."""
        self._shares: Shares | None = None
        """What each tenant may have of it; None if one has all of it."""
        self.is_batch_lane = False
        """It has batch sequences alone: no interactive one runs or waits."""

    def fill(self) -> None:
        """Prompts in progress come before admission, so no sequence is admitted before all of them are launched to their
        ends: a sequence with the same beginning finds all of it."""
        roster = self._roster
        if roster.order.counts_service and roster.waiting_since is not None:
            self._share()
        self.is_batch_lane = not roster.is_contended
        if self.is_batch_lane:
            self.budget = min(self.budget, self._limits.batch_lane_tokens)
        elif self._mixed is not None:
            first = min(roster.behind, key=roster.order.rank, default=None)
            first = roster.order.peek() if first is None and roster.waiting_since is not None else first
            num_first = 0 if first is None else len(first.tokens) - first.num_launched
            num_begun = sum([len(sequence.tokens) - sequence.num_launched for sequence in roster.behind])
            num_answers = len(roster.running) - len(roster.behind)
            self.budget = self._mixed.size(num_answers, num_begun + roster.num_waiting_tokens, self.budget, num_first)
        if roster.order.counts_service and roster.batching.joins and not self.is_batch_lane:
            self.budget, self.is_shared, self._shares = share_step(roster, self.budget, self._limits.shared_tokens)
        prompts = self.add_decodes()
        if prompts:
            prompts.sort(key=roster.order.rank)
            self._add_prompts(prompts)
        if roster.waiting_since is not None:
            self._admit()
        if prompts and not self.chunks and self._shares is not None:
            self._shares = None  # the tenants that have the step wait for what these hold
            self._add_prompts(prompts)

    def _add_prompts(self, prompts: list[Sequence]) -> None:
        for sequence in prompts:
            if self.budget > 0 and sequence.row is not None and self._room(sequence) > 0:
                self._add_prompt(sequence, sequence.row)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove what was planned for a sequence that is preempted."""
        if sequence in self.sequences:
            index = self.sequences.index(sequence)
            del self.sequences[index]
            self.budget += self.chunks[index].length
            del self.chunks[index]

    # Tenants

    def _share(self) -> None:
        """Find a row and blocks for the first in order, if its tenant holds too little and another too much."""
        roster, pool = self._roster, self._pool
        needy = roster.order.peek()
        if needy is None or needy.request.is_batch or not roster.batching.joins:
            return
        if not roster.has_row:
            self._preempt_for(needy, "rows", 1)
        num_blocks = pool.ids_for(len(needy.tokens))
        while pool.num_available < num_blocks + len(roster.running) * pool.groups.width:
            if not self._preempt_for(needy, "blocks", num_blocks):
                return

    def _preempt_for(self, needy: Sequence, lacks: str, num_needed: int) -> bool:
        """Preempt the latest sequence of the tenant that holds most, for one that was served less and would still hold no
        more; False if there is none.

        The oldest sequence of a tenant is never preempted so, and the needy one is still the first in order.
        """
        roster, own = self._roster, needy.request.tenant
        held = Counter({own: 0})
        for sequence in roster.running:
            held[sequence.request.tenant] += 1 if lacks == "rows" else len(sequence.blocks)
        tenant, most = max(held.items(), key=itemgetter(1))
        theirs = [sequence for sequence in roster.running if sequence.request.tenant == tenant]
        tier = roster.order.tier
        if len(theirs) < 2 or most - held[own] < 2 * num_needed or tier(theirs[0]) <= tier(needy):
            return False
        self._preempt(max(theirs, key=roster.order.rank), needy, lacks)
        return True

    def _room(self, sequence: Sequence) -> int:
        """Tokens of a prompt that fit the step and the tenant's share of it."""
        shares = self._shares
        return self.budget if shares is None else min(self.budget, shares.room(sequence.request.tenant))

    # Running sequences

    def add_decodes(self) -> list[Sequence]:
        """Give every sequence that holds its next token one position, and drafts as the budget allows.

        Returns the sequences whose prompt is not computed yet.
        """
        roster = self._roster
        running = roster.plannable()
        if not roster.batching.joins:
            prompts = [sequence for sequence in running if not sequence.holds_next]
            if prompts:
                return prompts  # a whole batch computes all its prompts before it generates
        prompts = []
        capacity, sequences, chunks = self._limits.block_size, self.sequences, self.chunks
        yields = bool(roster.batch) and roster.is_contended
        paused = () if self._shares is None else self._shares.paused
        for index, sequence in enumerate(running):
            row = sequence.row
            if yields and sequence.request.is_batch:
                continue  # a batch sequence pauses, with its row and blocks, while interactive ones need the engine
            if row is None or sequence.num_verifying:
                continue  # preempted by one planned before it, or of unknown length until its drafts are verified
            if not sequence.holds_next:
                prompts.append(sequence)
                continue
            if paused and sequence in paused:
                continue
            start = sequence.num_launched
            end = start + 1
            if end >= sequence.limit:
                continue  # its last token is being computed
            if sequence.num_again:
                self._add_again(sequence, row, self.budget - (len(running) - index))
                continue
            drafts: tuple[int, ...] = ()
            if sequence.drafts:
                drafts = self._shared_drafts(sequence, len(running) - index)
                end += len(drafts)
            new_blocks: tuple[int, ...] = ()
            state: tuple[int, ...] = ()
            others: tuple[tuple[int, ...], ...] = ()
            if drafts or not start % capacity:  # else its last block has room
                growth = self.grow_decode(sequence, end, sequence.num_computed, has_drafts=bool(drafts))
                if growth is None:
                    continue
                new_blocks, others, state = growth.new_blocks, growth.others, growth.state
            sequence.num_launched = end
            sequences.append(sequence)
            length = end - start
            chunks.append(make(Chunk, (row, start, length, drafts, new_blocks, True, None, length - 1, others, state)))
            self.budget -= length
        return prompts

    def grow_decode(self, sequence: Sequence, end: int, computed: int, *, has_drafts: bool) -> Grown | None:
        """Blocks, and where there are states a slot, up to `end`; None if the sequence was preempted itself."""
        if not self._pool.groups.is_plain:
            return self._grow_from(sequence, sequence.num_launched, end, computed, has_drafts)
        num_held = len(sequence.blocks)
        if end > num_held * self._limits.block_size and not self._make_room(sequence, end):
            return None
        return Grown(tuple(sequence.blocks[num_held:]))

    def _grow_from(self, sequence: Sequence, start: int, end: int, computed: int, has_drafts: bool) -> Grown | None:
        growth = self._grow(sequence, end, computed)
        if growth is None:
            return None
        rolls = start > sequence.num_prompt
        return growth._replace(state=self._pool.advance_state(sequence.holding, start, rolls=rolls, drafts=has_drafts))

    def _shared_drafts(self, sequence: Sequence, num_left: int) -> tuple[int, ...]:
        """Drafts that leave a position to each of the sequences left, and to other tenants their share."""
        shares = self._shares
        if shares is None:
            return self._usable_drafts(sequence, self.budget - num_left)
        drafts = self._usable_drafts(sequence, shares.spare)
        shares.spare -= len(drafts)
        return drafts

    def _usable_drafts(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """Drafts that fit the step's budget and, with one more token, the sequence's limit."""
        room = min(sequence.limit - sequence.num_launched - 2, budget)
        if self._pool.groups.num_states:
            room = min(room, self._revertible(sequence))
        drafts = sequence.drafts[: max(room, 0)]
        sequence.drafts = ()
        sequence.num_verifying = len(drafts)
        return drafts

    def _revertible(self, sequence: Sequence) -> int:
        """Drafts after which a state can go back. They end with a block, so that a chunk begins where its state can be kept."""
        if not self._pool.can_revert_state(sequence.holding):
            return 0
        end, again = sequence.num_launched + 1, sequence.num_again
        whole = self._pool.blocks_for(end - again) * self._limits.block_size
        return min(whole - end, MOST_AGAIN - again)

    def _add_again(self, sequence: Sequence, row: int, room: int) -> None:
        """A state went back over a wrong draft: compute the tokens since then again, and drafts after them, as far as there is
        room. The runner has the tokens already."""
        shares = self._shares
        if shares is not None:
            room = min(room, shares.spare)
        last = sequence.num_launched
        start = last - sequence.num_again
        end = min(last, start + max(room, 0)) + 1
        is_whole = end > last
        drafts = self._usable_drafts(sequence, room - sequence.num_again) if is_whole and sequence.drafts else ()
        computed = min(sequence.num_computed, start)
        growth = self._grow_from(sequence, start, end + len(drafts), computed, bool(drafts))
        if growth is None:
            return
        sequence.num_again = max(last - end, 0)
        if is_whole:
            sequence.num_launched = end + len(drafts)
        length = end + len(drafts) - start
        self.sequences.append(sequence)
        self.chunks.append(
            Chunk(
                row, start, length, drafts, growth.new_blocks, is_whole, None, len(drafts), growth.others, growth.state
            )
        )
        self.budget -= length
        if shares is not None:
            shares.spare -= length - 1

    def _add_prompt(self, sequence: Sequence, row: int) -> None:
        """Compute as many of the known tokens as the budget allows. Their blocks were reserved at admission.

        Blocks that the chunk fills are published at once: sequences admitted from here on, in this step too, take them as
        cached. A single token is no such chunk: see `engine.runner`."""
        start = sequence.num_launched
        end = min(len(sequence.tokens), start + self._room(sequence))
        pool, holding = self._pool, sequence.holding
        growth = Grown()
        arrival = None
        if not pool.groups.is_plain:
            end = self._checkpointed(start, end)
            grown = self._grow_prompt(sequence, end)
            if grown is None:
                return
            growth = grown._replace(state=pool.advance_state(holding, start, rolls=False))
        if not sequence.has_arrived:
            params = sequence.request.params
            history = tuple(sequence.tokens[:start]) if params.reads_history else ()
            arrival = Arrival(params, sequence.choice, sequence.num_prompt, history, sequence.request.adapter)
            others = tuple([tuple(held.blocks) for held in holding.others])
            growth = Grown(tuple(sequence.blocks), others, growth.state)
            sequence.has_arrived = True
        samples = end == len(sequence.tokens)
        token_ids = tuple(sequence.tokens[start:end])
        self.sequences.append(sequence)
        self.chunks.append(
            Chunk(
                row, start, end - start, token_ids, growth.new_blocks, samples, arrival, 0, growth.others, growth.state
            )
        )
        self.budget -= end - start
        if self._shares is not None:
            self._shares.take(sequence.request.tenant, end - start)
        sequence.num_launched = end
        if samples:
            sequence.holds_next = True
        if end - start > 1:
            pool.publish(holding, end)

    def _checkpointed(self, start: int, end: int) -> int:
        """Where a model has states, a prompt's chunk ends with a block if it reaches the end of one: the state there can be
        kept, and the same prompt, or one that continues it, begins from it."""
        if not self._pool.groups.num_states or not self._limits.prefix_caching:
            return end
        whole = end - end % self._limits.block_size
        return whole if whole > start else end

    def _grow_prompt(self, sequence: Sequence, end: int) -> Grown | None:
        """Blocks of the groups that were not given all at admission. A sequence that only waits for its own steps to be over,
        so that its window can free, is not planned now."""
        holding, computed = sequence.holding, sequence.num_computed
        before = [len(held.blocks) for held in (holding, *holding.others)]
        if self._pool.reserve(holding, end, computed=computed):
            return _grown(sequence, before)
        return None if computed < sequence.num_launched else self._grow(sequence, end, computed)

    def _grow(self, sequence: Sequence, end: int, computed: int) -> Grown | None:
        """Reserve blocks of all groups; returns what came to each, or None if the sequence was preempted itself."""
        holding = sequence.holding
        before = [len(held.blocks) for held in (holding, *holding.others)]
        return _grown(sequence, before) if self._make_room(sequence, end, computed) else None

    def _make_room(self, sequence: Sequence, num_tokens: int, computed: int = 0) -> bool:
        """Reserve blocks for a running sequence, preempting others if needed; False if it was preempted itself."""
        pool, roster = self._pool, self._roster
        while not pool.reserve(sequence.holding, num_tokens, computed=computed):
            if len(roster.running) == 1 and pool.num_pinned:
                pool.unpin_all()  # preempting itself would lose what is being computed for it each time
                continue
            victim = self.victim(sequence)
            self._preempt(victim, sequence, "blocks")
            if victim is sequence:
                return False
        return True

    def victim(self, needy: Sequence) -> Sequence:
        """Of those that rank after the sequence in need: the least important, then the cheapest to recompute. Or the
        sequence itself."""
        order = self._roster.order
        own = order.rank(needy)
        candidates = [sequence for sequence in self._roster.running if order.rank(sequence) > own]
        return max(candidates, key=lambda one: (order.tier(one), -one.num_computed, order.rank(one)), default=needy)

    # Waiting sequences

    def _admit(self) -> None:
        """Admit waiting sequences while there are rows, blocks and budget. None overtakes the first in order, unless that
        one's tenant has had its share of the step."""
        roster = self._roster
        is_whole = not roster.batching.joins
        opens_s = roster.opens_s
        self.lacks = "an open batch"
        if opens_s is None or opens_s > roster.now or (is_whole and roster.running):
            return
        self.lacks = "budget"
        while is_whole or self.budget > 0:
            sequence = self._first()
            if sequence is None or (sequence.request.is_batch and roster.is_contended):
                self.lacks = "" if sequence is None else "idle time"
                return
            if not roster.has_row and not self._preempt_batch(sequence, "rows"):
                self.lacks = "rows"
                return
            num_cached = self._claim(sequence, is_whole)
            if num_cached is None:
                if self._preempt_batch(sequence, "blocks"):
                    continue
                if roster.running or not self._pool.num_pinned:
                    self.lacks = "blocks"
                    return
                self._pool.unpin_all()
                continue
            row = roster.enter(sequence, num_cached)
            if self.budget > 0:
                self._add_prompt(sequence, row)

    def _first(self) -> Sequence | None:
        first = self._roster.order.peek()
        if self._shares is None or first is None or self._room(first) > 0:
            return first
        order = self._roster.order
        rooms = [one for one in order.firsts if self._room(one) > 0]
        return min(rooms, key=lambda one: (order.tier(one), order.rank(one)), default=None)

    def _preempt_batch(self, needy: Sequence, lacks: str) -> bool:
        """Preempt the batch sequence admitted last for an interactive one; False if there is none."""
        batch = self._roster.batch
        if not batch or needy.request.is_batch:
            return False
        self._preempt(next(reversed(batch)), needy, lacks)
        return True

    def _preempt(self, victim: Sequence, needy: Sequence, lacks: str) -> None:
        self.withdraw(victim)
        self._roster.preempt(victim)
        preemption = Preemption(victim.request_id, victim.choice, needy.request_id, needy.choice, lacks)
        self.preemptions = (*self.preemptions, preemption)

    def _claim(self, sequence: Sequence, is_whole: bool) -> int | None:
        """Reserve blocks for all tokens the sequence has; returns how many of them need no computing, None if there is no
        room.

        One block per running sequence is left over, so that admission does not cause preemption at once.
        """
        spare = 0 if is_whole else len(self._roster.running)
        parent = sequence.parent
        if parent is not None and self._can_fork(parent, sequence):
            fork = self._pool.fork(parent.holding, sequence.holding, sequence.num_prompt - 1, spare)
            if fork is None:
                return None
            self.copies.extend(fork.copies)
            sequence.prefix = PrefixHit(fork.num_tokens, "", self._roster.now)
            return fork.num_tokens
        match = WHOLE_PROMPT if sequence.wants_prompt_logprobs else self._pool.match(sequence.holding)
        num_tokens = sequence.limit - 1 if is_whole else len(sequence.tokens)
        if not self._pool.reserve(sequence.holding, num_tokens, match, spare):
            return None
        num_cached = len(match.blocks) * self._limits.block_size
        if sequence.prefix is None:
            sequence.prefix = PrefixHit(num_cached, match.miss, self._roster.now, match.differs)
        return num_cached

    def _can_fork(self, parent: Sequence, sequence: Sequence) -> bool:
        is_computed = parent.row is not None and parent.num_computed >= sequence.num_prompt
        return is_computed and self._pool.can_fork(parent.holding, sequence.num_prompt - 1)


def _grown(sequence: Sequence, before: list[int]) -> Grown:
    """Block ids that each group got since it had so many."""
    first, *others = before
    holding = sequence.holding
    return Grown(
        tuple(holding.blocks[first:]), tuple([tuple(held.blocks[n:]) for held, n in zip(holding.others, others)])
    )
