"""The pool of a model with several kinds of cache: windows that free what they no longer see, states, full groups.

One surface and one set of ids over all of them. A prefix is named by the chain of the first group; other groups hang their
blocks, and states their checkpoints, on its contents:

    first group    0 1 2 3 4 5 6 7         all of them, or with a window the last few
    window         . . . . . 5 6 7         what the next position reads
    state          . . . . . . . 7         the checkpoint after the last
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from penstock.runtime.core.blocks import NO_MATCH, BlockPool, Fork, Match
from penstock.runtime.core.kinds.groups import MARGIN_BLOCKS, BlockGroup
from penstock.runtime.core.kinds.states import Checkpointed, StateHolding, StateSlots
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.prefix import Content, Held, Holding, Namespace


class Growth(NamedTuple):
    """What one group needs for a reservation."""

    held: Held
    group: BlockGroup
    begin: int
    """The first block that is taken; those between the last held and it are never read."""
    end: int
    drop: int
    """Blocks before this number are read no more."""

    @property
    def num_ids(self) -> int:
        return max(self.end - self.begin, 0) * self.group.width


class GroupedPool(BlockPool):
    """`_ahead` is the most tokens of a step: what a window holds beyond itself while a prompt is computed."""

    content_type = Checkpointed

    def __init__(self, limits: Limits) -> None:
        size, num_kept = (limits.num_blocks, limits.block_size), limits.num_kept_blocks
        super().__init__(*size, caching=limits.prefix_caching, num_kept_blocks=num_kept)
        self.groups = groups = limits.groups
        self._ahead = limits.max_batch_tokens
        self._windows = (groups.first, *groups.others)
        self._states = StateSlots(groups.num_states, self._is_pinned)

    # Queries

    def ids_for(self, num_tokens: int) -> int:
        return self.groups.most_ids(num_tokens, self.block_size, self._ahead)

    def can_fork(self, parent: Holding, num_tokens: int) -> bool:
        """A state is after all tokens and never before the last; a window that has moved on has freed its head."""
        reads = [group.first_read(num_tokens, self.block_size) for group in self._windows]
        return not self.groups.num_states and all(
            held.first <= low for held, low in zip((parent, *parent.others), reads)
        )

    def match(self, holding: Holding, most: int | None = None) -> Match:
        if not self._caching:
            return NO_MATCH
        if self.groups.first.window is None:
            found = super().match(holding, most)
            contents = [self._contents[block] for block in found.blocks]
        else:
            chains = self._lineages(holding, most)
            contents = next((list(chain) for chain in chains if self._num_usable(list(chain)) == len(chain)), [])
            found = Match((), "" if contents else "nothing cached begins alike")
        usable = [content for content in contents if isinstance(content, Checkpointed)]
        count = self._num_usable(usable)
        if not count:
            return found._replace(blocks=(), tail=None, miss=found.miss or "what it needs beside was not kept")
        tail = usable[count - 1]
        first, *others = [self._found_blocks(usable[:count], index, group) for index, group in enumerate(self._windows)]
        miss = found.miss if count == len(usable) else "what it needs beside was not kept"
        return Match(first, miss, tail, found.differs, tuple(others), tail.state)

    def check(self, holders: Iterable[Holding]) -> None:
        holders = [getattr(holder, "holding", holder) for holder in holders]
        flat = []
        for holding in holders:
            ids = [block for held, group in self._held(holding) for block in _ids(held, group)]
            flat.append(Held(ids))
        self._check_books(flat)
        by_hash = {hash_: self._contents[block] for hash_, block in self._index.items()}
        if any(content is None or content.hash != hash_ for hash_, content in by_hash.items()):
            raise RuntimeError("the hash index differs from the published contents")
        for block, content in enumerate(self._contents):
            is_other = isinstance(content, Checkpointed) and any(block in ids for ids in content.others.values())
            if content is not None and not (is_other or self._index.get(content.hash) == block):
                raise RuntimeError("a block of a further group hangs on content that is not published")
        self._states.check([holding.state for holding in holders if isinstance(holding.state, StateHolding)])

    # Commands

    def reserve(
        self, holding: Holding, num_tokens: int, match: Match | None = None, spare: int = 0, computed: int = 0
    ) -> bool:
        """As the plain pool, over all groups: all or nothing. `computed` positions are done for good, so blocks that only
        they read go back."""
        if not holding.blocks:
            return self._begin(holding, num_tokens, match or NO_MATCH, spare)
        growths = [
            self._growth(held, group, len(held.blocks) // group.width, num_tokens, computed)
            for held, group in self._held(holding)
        ]
        num_freed = sum(self._num_droppable(growth) for growth in growths)
        if sum(growth.num_ids for growth in growths) + spare * self.groups.width > self.num_available + num_freed:
            return False
        for growth in growths:
            self._let_go(_head(growth))
            growth.held.first = max(growth.held.first, growth.drop)
        for growth in growths:
            self._grow(growth)
        return True

    def fork(self, parent: Holding, child: Holding, num_tokens: int, spare: int = 0) -> Fork | None:
        if (1 + spare) * self.groups.width > self.num_available:
            return None
        number = num_tokens // self.block_size
        self._prepare(child)
        copies: list[tuple[int, int]] = []
        for (theirs, group), (ours, _) in zip(self._held(parent), self._held(child)):
            low = group.first_read(num_tokens, self.block_size)
            width = group.width
            ours.blocks.extend(theirs.blocks[: number * width])
            ours.first = min(low, number)
            for block in _ids(ours, group):
                self._hold(block)
            own = self._take(width)
            ours.blocks.extend(own)
            copies += zip(theirs.blocks[number * width : (number + 1) * width], own)
        self._inherit(parent, child, number)
        return Fork(num_tokens, tuple(copies) if num_tokens % self.block_size else ())

    def publish(self, holding: Holding, num_tokens: int) -> None:
        if not self._caching:
            return
        before = holding.num_published
        super().publish(holding, num_tokens)
        if holding.others:
            for number, content in self._chain(holding, before):
                if self._is_published(content):
                    self._attach(holding, number, content)
        self._publish_states(holding)

    def advance_state(self, holding: Holding, start: int, *, rolls: bool, drafts: bool = False) -> tuple[int, ...]:
        """A chunk begins at `start`; see `StateSlots.advance`."""
        if not isinstance(holding.state, StateHolding):
            return ()
        keeps = self._caching and not start % self.block_size
        slots = self._states.advance(holding.state, start, keeps=keeps, rolls=rolls, drafts=drafts)
        self._publish_states(holding)
        return slots

    def can_revert_state(self, holding: Holding) -> bool:
        return not isinstance(holding.state, StateHolding) or self._states.can_revert(holding.state)

    def revert_state(self, holding: Holding) -> bool:
        if not isinstance(holding.state, StateHolding):
            return False
        holding.state.is_reverted = True
        return True

    def _publish_states(self, holding: Holding) -> None:
        """States after tokens that are published by now can be found."""
        if isinstance(holding.state, StateHolding) and holding.state.pending:
            self._states.publish(holding.state, partial(self._published_after, holding))

    def retract(self, holding: Holding, first: int) -> set[int]:
        for _, content in self._chain(holding, first):
            content.is_lost = True
        return super().retract(holding, first)

    def release(self, holding: Holding) -> None:
        self._publish_states(holding)
        for held, group in reversed(self._held(holding)):
            self._let_go(reversed(_ids(held, group)))
            held.blocks.clear()
            held.first = 0
        if isinstance(holding.state, StateHolding):
            self._states.release(holding.state)
            holding.state = None
        holding.num_published = 0
        holding.tail = None

    def trim(self, holding: Holding, num_surplus: int, others: tuple[int, ...] = ()) -> None:
        for (held, _), count in zip(self._held(holding), (num_surplus, *others)):
            end = len(held.blocks) - count
            self._let_go(reversed(held.blocks[end:]))
            del held.blocks[end:]

    def pin(self, match: Match, until_s: float) -> None:
        super().pin(match, until_s)
        for blocks in match.others:
            super().pin(match._replace(blocks=blocks), until_s)

    # Reserving

    def _held(self, holding: Holding) -> list[tuple[Held, BlockGroup]]:
        return list(zip((holding, *holding.others), self._windows))

    def _prepare(self, holding: Holding) -> None:
        if len(holding.others) != len(self.groups.others):
            holding.others = tuple(Held() for _ in self.groups.others)

    def _begin(self, holding: Holding, num_tokens: int, match: Match, spare: int) -> bool:
        """The first reservation of an epoch. A window is given what its longest chunk needs, not the whole prompt."""
        self._prepare(holding)
        num_matched = len(match.blocks) // self.groups.first.width
        size = self.block_size
        num_cached = num_matched * size
        growths = []
        for held, group in self._held(holding):
            reach = num_tokens
            if group.window is not None:
                behind = group.first_read(num_cached, size) * size
                reach = min(num_tokens, behind + group.window + self._ahead + (MARGIN_BLOCKS - 1) * size)
            growths.append(self._growth(held, group, num_matched, reach, num_cached))
        found = (match.blocks, *match.others) if num_matched else ((),) * len(growths)
        held_ids = {
            block for blocks, growth in zip(found, growths) for block in blocks[growth.drop * growth.group.width :]
        }
        num_idle = sum(1 for block in held_ids if block in self._cached)
        num_needed = sum(growth.num_ids for growth in growths) + spare * self.groups.width
        if num_needed > self.num_available - num_idle:
            return False
        if self.groups.num_states and not self._states.has_room(match.state):
            return False
        for block in held_ids:
            self._hold(block)
        for blocks, growth in zip(found, growths):
            growth.held.blocks.extend(blocks)
            growth.held.first = min(growth.drop, num_matched)
        for growth in growths:
            self._grow(growth)
        holding.num_published, holding.tail = num_matched, match.tail
        if self.groups.num_states:
            content = match.tail if isinstance(match.tail, Checkpointed) else None
            holding.state = self._states.begin(match.state, content)
        return True

    def _growth(self, held: Held, group: BlockGroup, num_held: int, num_tokens: int, computed: int) -> Growth:
        drop = group.first_read(computed, self.block_size)
        return Growth(held, group, max(num_held, drop), self.blocks_for(num_tokens), drop)

    def _grow(self, growth: Growth) -> None:
        """Blocks that are skipped get the id of one that is held: in range, and never read."""
        held, group, begin, end = growth.held, growth.group, growth.begin, growth.end
        if end <= begin:
            return
        own = self._take((end - begin) * group.width)
        missing = begin * group.width - len(held.blocks)
        held.blocks.extend(own[:1] * max(missing, 0))
        held.blocks.extend(own)

    def _num_droppable(self, growth: Growth) -> int:
        """Ids that become available when a group's head is dropped."""
        references, pins = self._references, self._pins
        return sum(1 for block in _head(growth) if references[block] == 1 and block not in pins)

    # Prefixes

    def _num_usable(self, contents: list[Checkpointed]) -> int:
        """The longest beginning of which every group has what the next position reads."""
        size = self.block_size
        runs = [0] * len(self.groups.others)
        best = 0
        for number, content in enumerate(contents):
            count = number + 1
            runs = [runs[index] + 1 if index + 1 in content.others else 0 for index in range(len(runs))]
            needed = (count - group.first_read(count * size, size) for group in self.groups.others)
            if all(run >= need for run, need in zip(runs, needed)) and (
                not self.groups.num_states or content.state is not None
            ):
                best = count
        return best

    def _found_blocks(self, contents: list[Checkpointed], index: int, group: BlockGroup) -> tuple[int, ...]:
        """Ids of a matched group, skipped ones filled up."""
        low = group.first_read(len(contents) * self.block_size, self.block_size)
        read = [content.others[index] if index else (self._index[content.hash],) for content in contents[low:]]
        ids = [block for blocks in read for block in blocks]
        return (*ids[:1] * (low * group.width), *ids) if ids else ()

    def _lineages(self, holding: Holding, most: int | None) -> Iterator[tuple[Checkpointed, ...]]:
        """Of a first group with a window: chains whose last window is there, the longest first. Heads may be gone, so chains
        are compared from their ends backwards, through contents that are no longer published."""
        num_full = (len(holding.tokens) - 1) // self.block_size
        num_full = num_full if most is None else min(num_full, most)
        self._extend_hashes(holding, num_full)
        for count in range(num_full, 0, -1):
            low = self.groups.first.first_read(count * self.block_size, self.block_size)
            if not all(hash_ in self._index for hash_ in holding.hashes[low:count]):
                continue
            contents = self._compared(holding, count)
            if contents and all(self._is_published(content) for content in contents[low:]):
                yield contents

    def _compared(self, holding: Holding, count: int) -> tuple[Checkpointed, ...]:
        """The chain that ends with a hash, if its tokens are the sequence's own; empty if not."""
        content: Content | Namespace | None = self._contents[self._index[holding.hashes[count - 1]]]
        chain: list[Checkpointed] = []
        for number in range(count - 1, -1, -1):
            if not isinstance(content, Checkpointed) or content.is_lost:
                return ()
            if content.tokens != self._tokens_of(holding, number, number + 1):
                return ()
            chain.append(content)
            content = content.parent
        return tuple(reversed(chain)) if content == holding.namespace else ()

    def _is_published(self, content: Content) -> bool:
        block = self._index.get(content.hash)
        return block is not None and self._contents[block] is content

    def _chain(self, holding: Holding, first: int) -> Iterator[tuple[int, Checkpointed]]:
        """Numbers and contents of its published blocks, from the last back to `first`."""
        content: Content | Namespace | None = holding.tail
        for number in range(holding.num_published - 1, first - 1, -1):
            if not isinstance(content, Checkpointed):
                return
            yield number, content
            content = content.parent

    def _published_after(self, holding: Holding, num_tokens: int) -> tuple[bool, Checkpointed | None]:
        """Whether so many of its tokens are published, and the content that they end with if it can be found."""
        number = num_tokens // self.block_size - 1
        if number >= holding.num_published:
            return False, None
        content = next((content for at, content in self._chain(holding, number) if at == number), None)
        return True, content if content is not None and self._is_published(content) else None

    def _attach(self, holding: Holding, number: int, content: Checkpointed) -> None:
        """Hang the further groups' blocks on content, where it has none yet."""
        for index, (held, group) in enumerate(zip(holding.others, self.groups.others), 1):
            ids = tuple(held.blocks[number * group.width : (number + 1) * group.width])
            if index not in content.others and number >= held.first and ids:
                content.others[index] = ids
                for block in ids:
                    self._contents[block] = content

    def _unpublish(self, block: int) -> None:
        content = self._contents[block]
        if not isinstance(content, Checkpointed):
            return
        if self._index.get(content.hash) == block:
            super()._unpublish(block)
            for ids in content.others.values():
                self._unhang(ids, block)
            content.others.clear()
            self._states.forget(content)
            return
        index = next(index for index, ids in content.others.items() if block in ids)
        self._unhang(content.others.pop(index), block)

    def _unhang(self, ids: tuple[int, ...], but: int) -> None:
        """Blocks of a further group hold nothing of use any more; the caller has use for `but`."""
        for block in ids:
            self._contents[block] = None
            if block != but:
                self._pins.pop(block, None)
                self._cached.pop(block, None)
                if not self._references[block]:
                    self._free.append(block)

    def _is_pinned(self, content: Checkpointed) -> bool:
        return self._index.get(content.hash) in self._pins


def _ids(held: Held, group: BlockGroup) -> list[int]:
    """Ids that a holder still has of a group, in the order of positions."""
    return held.blocks[held.first * group.width :]


def _head(growth: Growth) -> list[int]:
    """Ids that are dropped before a group grows."""
    begin, width = growth.held.first, growth.group.width
    return growth.held.blocks[begin * width : max(growth.drop, begin) * width]


def make_pool(limits: Limits) -> BlockPool:
    """The plain pool for a model with one full group: nothing else is paid for there."""
    if not limits.groups.is_plain:
        return GroupedPool(limits)
    size, num_kept = (limits.num_blocks, limits.block_size), limits.num_kept_blocks
    return BlockPool(*size, caching=limits.prefix_caching, num_kept_blocks=num_kept)
