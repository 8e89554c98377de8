"""Sole owner of the KV blocks: who holds which, what each contains, what may be taken.

A block is in exactly one state:

    free      holds nothing of use; if it never held anything it is fresh, and where memory is given on first use it has none
    held      one or more sequences reference it; the one that took it writes it, before any that found it reads it
    cached    unreferenced, but its content is published and may be matched; taken in LRU order when free ones run out
    pinned    unreferenced and published like cached, but not for taking until its pin expires or is broken
    leaving   unreferenced and published like cached, but being copied out: not for taking until the copy is over
    arriving  taken for content that is on its way from elsewhere: published, and so found by others, once it is there

Knows token ids and hashes, never tensors.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, KeysView
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.runtime.core.kinds.groups import PLAIN, CacheGroups
from penstock.runtime.core.prefix import (
    TOKEN_BYTES,
    Content,
    Held,
    Holding,
    Namespace,
    block_hash,
    first_difference,
    packed,
)


class Match(NamedTuple):
    """Cached blocks that begin a sequence, and why there are no more of them."""

    blocks: tuple[int, ...]
    miss: str
    tail: Content | None = None
    """What the last of them holds."""
    differs: tuple[int, int, int] | None = None
    """Where the most recent cached prompt that begins with them differs: position, its token, the token there."""
    others: tuple[tuple[int, ...], ...] = ()
    """Block ids of further groups, as many blocks each; those that are not read are filled up."""
    state: int | None = None
    """The checkpoint after the last of them."""


class PoolListener(Protocol):
    """Receives each publication and removal of content as it happens, on the scheduler's thread."""

    def published(self, hash: bytes, parent: bytes, tokens: bytes) -> None:
        """A block with these tokens, packed, after the content named by `parent`: a block's hash or a namespace's."""

    def removed(self, hash: bytes) -> None:
        """Evicted, retracted, or its block taken for something else."""


NO_MATCH = Match((), "prefix caching is off")


class Fork(NamedTuple):
    """Where a forked sequence starts and which blocks to duplicate for it."""

    num_tokens: int
    copies: tuple[tuple[int, int], ...]


class BlockPool:
    """Invariants: see `check`. Commands do all or nothing; queries change nothing.

    One full group; `core.kinds.pool` has the same surface over several groups.
    """

    groups: CacheGroups = PLAIN
    content_type = Content

    def __init__(
        self, num_blocks: int, block_size: int, *, caching: bool = True, num_kept_blocks: int | None = None
    ) -> None:
        """Beyond `num_kept_blocks` (default: all) a fresh block is taken only when no cached one could be. Running
        sequences get what they need, but memory does not grow for prefixes that may never be asked for again."""
        self.num_blocks = num_blocks
        self._num_spared = 0 if num_kept_blocks is None else max(num_blocks - num_kept_blocks, 0)
        """Fresh blocks that cached ones go before."""
        self.block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._caching = caching
        self._references = [0] * num_blocks
        self._contents: list[Content | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._beginnings: dict[Namespace, Content] = {}
        """What was last published at the beginning of a prompt."""
        self._fresh = list(range(num_blocks - 1, -1, -1))
        self._free: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._pins: dict[int, float] = {}
        self._pin_ends: list[tuple[float, int, int]] = []
        self._num_pin_ends = 0
        self._leaving: dict[int, Content] = {}
        """What is being copied out of each block, whether sequences hold it meanwhile or not."""
        self._arriving: dict[Holding, None] = {}
        self._listeners: tuple[PoolListener, ...] = ()
        self.on_evict: Callable[[int, Content], None] | None = None
        """Called with a cached block that is being taken, and with what it holds until somebody writes there."""
        self.num_evictions = 0
        self.num_shared = 0
        """References beyond the first to each block: what a step of all sequences reads more than once."""

    # Queries

    @property
    def num_available(self) -> int:
        """Blocks that could be reserved now."""
        return len(self._free) + len(self._fresh) + len(self._cached)

    @property
    def num_unused(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free) + len(self._fresh)

    @property
    def num_held(self) -> int:
        """Blocks that sequences reference."""
        idle = sum(1 for block in self._pins.keys() | self._leaving.keys() if not self._references[block])
        return self.num_blocks - self.num_available - idle

    @property
    def leaving(self) -> KeysView[int]:
        return self._leaving.keys()

    @property
    def num_arriving(self) -> int:
        """Blocks, those included that what arrives will continue."""
        return sum(len(holding.blocks) for holding in self._arriving)

    def oldest(self, most: int) -> list[tuple[int, Content]]:
        """The cached blocks that would be taken next, with what they hold."""
        found = ((block, self._contents[block]) for block in islice(self._cached, most))
        return [(block, content) for block, content in found if content is not None]

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    @property
    def num_cached(self) -> int:
        """Published blocks, referenced or not."""
        return len(self._index)

    @property
    def published(self) -> KeysView[bytes]:
        """Hashes of the published blocks, as they are at the moment of asking."""
        return self._index.keys()

    def block_of(self, hash: bytes) -> int | None:
        """The block that is published under a hash."""
        return self._index.get(hash)

    @property
    def books(self) -> "tuple[list[int], list[Content | None], KeysView[int]]":
        """For reading: how many sequences hold each block, what each has published, which are pinned."""
        return self._references, self._contents, self._pins.keys()

    @property
    def usage_fraction(self) -> float:
        """Share of the pool that running sequences or pins keep from others."""
        num_available = len(self._free) + len(self._fresh) + len(self._cached)
        return 1.0 - num_available / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def ids_for(self, num_tokens: int) -> int:
        """Block ids that one sequence of so many tokens ever holds at a time, over all groups."""
        return self.blocks_for(num_tokens)

    def can_fork(self, parent: Holding, num_tokens: int) -> bool:
        """A child can start with the parent's first `num_tokens` positions, room or not."""
        return True

    def match(self, holding: Holding, most: int | None = None) -> Match:
        """The longest run of published blocks that begins the sequence, leaving at least one token to compute; no more
        than `most` blocks."""
        if not self._caching:
            return NO_MATCH
        num_full = (len(holding.tokens) - 1) // self.block_size
        num_full = num_full if most is None else min(num_full, most)
        if not num_full:
            return Match((), "shorter than a block")
        self._extend_hashes(holding, num_full)
        index, contents, size = self._index, self._contents, self._block_bytes
        named: list[int] = []
        for block in map(index.get, islice(holding.hashes, num_full)):
            if block is None:
                break
            named.append(block)
        tokens = self._tokens_of(holding, 0, len(named))
        found: list[int] = []
        tail: Content | None = None
        for number, place in enumerate(named):
            content = contents[place]
            own = tokens[number * size : (number + 1) * size]
            if content is None or not content.continues(tail or holding.namespace, own):
                break
            found.append(place)
            tail = content
        if len(found) == num_full:
            return Match(tuple(found), "", tail)
        miss = "differs from every cached prompt" if found else "nothing cached begins alike"
        return Match(tuple(found), miss, tail, self._difference(holding, len(found), tail))

    def check(self, holders: Iterable[Holding]) -> None:
        """Raise RuntimeError if the books do not balance, given every sequence that holds blocks."""
        self._check_books(holders)
        published = {block: content.hash for block, content in enumerate(self._contents) if content}
        if {hash_: block for block, hash_ in published.items()} != self._index or len(published) != len(self._index):
            raise RuntimeError("the hash index differs from the published contents")

    def _check_books(self, holders: Iterable[Held]) -> None:
        counts = [0] * self.num_blocks
        for holding in (*holders, *self._arriving):
            if len(set(holding.blocks)) != len(holding.blocks):
                raise RuntimeError(f"a holder has a block twice: {holding.blocks}")
            for block in holding.blocks:
                counts[block] += 1
        if counts != self._references:
            raise RuntimeError("reference counts differ from the sequences that hold blocks")
        if self.num_shared != sum(counts) - sum(1 for count in counts if count):
            raise RuntimeError("the count of shared blocks differs from the references")
        idle = {block for block in self._pins.keys() | self._leaving.keys() if not counts[block]}
        free = [*self._free, *self._fresh]
        groups = [set(free), set(self._cached), idle, {b for b, count in enumerate(counts) if count}]
        if sum(map(len, groups)) != self.num_blocks or set().union(*groups) != set(range(self.num_blocks)):
            raise RuntimeError("free, cached, pinned, leaving and held blocks do not add up to the pool")
        if len(free) != len(groups[0]):
            raise RuntimeError("a block is on the free list twice")
        if any(self._contents[block] for block in free):
            raise RuntimeError("a free block still has published content")
        if any(not self._contents[block] for block in (*self._cached, *self._pins)):
            raise RuntimeError("a cached or pinned block has no published content")

    # Commands

    def listen(self, listener: PoolListener) -> None:
        """Add a listener for what is published and removed from now on."""
        self._listeners += (listener,)

    def reserve(
        self, holding: Holding, num_tokens: int, match: Match | None = None, spare: int = 0, computed: int = 0
    ) -> bool:
        """Give the sequence blocks for its first `num_tokens` positions, starting with `match` if it holds none yet.

        All or nothing; refuses if fewer than `spare` blocks would stay available. What a full group has `computed` it keeps.
        """
        matched = match.blocks if match else ()
        num_new = self.blocks_for(num_tokens) - len(holding.blocks) - len(matched)
        num_idle_matched = sum(1 for block in matched if block in self._cached)
        if num_new + spare > self.num_available - num_idle_matched:
            return False
        for block in matched:
            self._hold(block)
        if matched:
            holding.blocks.extend(matched)
            holding.num_published = len(matched)
            holding.tail = match.tail if match else None
        if num_new > 0:
            holding.blocks.extend(self._take(num_new))
        return True

    def fork(self, parent: Holding, child: Holding, num_tokens: int, spare: int = 0) -> Fork | None:
        """Let `child` start with the parent's first `num_tokens` positions, and room for one more.

        Whole blocks are shared. The block the child will write next is its own, filled with a copy of the parent's, since a
        block with two holders is never written. None if there is no room.
        """
        num_shared = num_tokens // self.block_size
        if 1 + spare > self.num_available:
            return None
        shared = parent.blocks[:num_shared]
        for block in shared:
            self._hold(block)
        (own,) = self._take(1)
        child.blocks.extend((*shared, own))
        self._inherit(parent, child, num_shared)
        partial = num_tokens % self.block_size
        return Fork(num_tokens, ((parent.blocks[num_shared], own),) if partial else ())

    def _inherit(self, parent: Holding, child: Holding, num_shared: int) -> None:
        """What is published of the first blocks is so for the child too."""
        child.num_published = min(parent.num_published, num_shared)
        child.hashes = parent.hashes[: child.num_published]
        tail: Content | Namespace | None = parent.tail
        for _ in range(parent.num_published - child.num_published):
            tail = tail.parent if isinstance(tail, Content) else None
        child.tail = tail if isinstance(tail, Content) else None

    def publish(self, holding: Holding, num_tokens: int) -> None:
        """Offer the full blocks among the sequence's first tokens to later sequences that begin alike.

        They are computed, or will be before any sequence that finds them reads them; `retract` handles a failure. Where
        another block already holds the same content, that block is kept and ours stays private.
        """
        num_full = num_tokens // self.block_size
        if not self._caching or num_full <= holding.num_published:
            return
        hashes, blocks, index, contents = holding.hashes, holding.blocks, self._index, self._contents
        first, size, content_type = holding.num_published, self._block_bytes, self.content_type
        if len(hashes) < first:
            self._extend_hashes(holding, first)
        parent: Content | Namespace = holding.tail or holding.namespace
        tokens = self._tokens_of(holding, first, num_full)
        for number in range(first, num_full):
            own = tokens[(number - first) * size : (number - first + 1) * size]
            if number == len(hashes):
                hashes.append(block_hash(hashes[-1] if hashes else holding.namespace.hash, own))
            hash_ = hashes[number]
            present = index.get(hash_)
            content = None if present is None else contents[present]
            if present is not None and content is not None:
                if content.continues(parent, own):
                    parent = holding.tail = content
                    continue
                self._forget(present)
            content = content_type(hash_, own, parent)
            before, parent = parent, content
            holding.tail = content
            if number < holding.first:
                continue  # a window has left it: a link of the chain and nothing more
            if isinstance(before, Content):
                before.child = content
            else:
                self._beginnings[before] = content
            contents[blocks[number]], index[hash_] = content, blocks[number]
            for listener in self._listeners:
                listener.published(hash_, hashes[number - 1] if number else holding.namespace.hash, own)
        holding.num_published = num_full

    def arrive(self, holding: Holding, spare: int = 0) -> tuple[int, ...]:
        """Take blocks for those full ones of a holding that nobody has published: their content is on its way. The holding's
        last token stands for what comes after them. Empty if there is no room."""
        num_tokens = (len(holding.tokens) - 1) // self.block_size * self.block_size
        match = self.match(holding)
        if not self._caching or not self.reserve(holding, num_tokens, match, spare):
            return ()
        self._arriving[holding] = None
        return tuple(holding.blocks[len(match.blocks) :])

    def land(self, holding: Holding, *, is_whole: bool) -> None:
        """What was on its way is there, and found from now on; or it will never be."""
        del self._arriving[holding]
        if is_whole:
            self.publish(holding, len(holding.blocks) * self.block_size)
        self.release(holding)

    def leave(self, block: int) -> None:
        """Begin to copy a published block out: it is not taken before `stay`."""
        content = self._contents[block]
        if content is None or block in self._leaving:
            raise RuntimeError(f"block {block} holds nothing to copy out, or is being copied")
        self._leaving[block] = content
        self._cached.pop(block, None)

    def stay(self, block: int) -> Content | None:
        """The copy is over; the block is the next to be taken. Returns what was copied; None if that was retracted since."""
        content = self._leaving.pop(block)
        if not self._references[block]:
            self._rest((block,))
            if block in self._cached:
                self._cached.move_to_end(block, last=False)
        return content if self._contents[block] is content else None

    def retract(self, holding: Holding, first: int) -> set[int]:
        """What the sequence was to write from its block number `first` on may be missing: unpublish it.

        Returns the blocks, for the sequences that have found them already. Content built on them cannot be found either:
        its parent is gone, and lineage is compared by identity.
        """
        found = [self._index.get(hash_) for hash_ in holding.hashes[first:]]
        lost = {block for block in found if block is not None}
        for block in lost:
            self._forget(block)
        return lost

    def release(self, holding: Holding) -> None:
        """Take all blocks back. The last goes first, so that a prefix outlives what was built on it."""
        self._let_go(reversed(holding.blocks))
        holding.blocks.clear()
        holding.num_published = 0
        holding.tail = None

    def advance_state(self, holding: Holding, start: int, *, rolls: bool, drafts: bool = False) -> tuple[int, ...]:
        """There are no states here."""
        return ()

    def can_revert_state(self, holding: Holding) -> bool:
        """A chunk with drafts can be taken back: there is room for the state before it beside the one after it."""
        return True

    def revert_state(self, holding: Holding) -> bool:
        """A draft was wrong: a state, if there is one, goes back to before the chunk. Returns whether there is one."""
        return False

    def trim(self, holding: Holding, num_surplus: int, others: tuple[int, ...] = ()) -> None:
        """Take back the last so many blocks of each group, which nobody has written or shares."""
        num_blocks = len(holding.blocks) - num_surplus
        self._let_go(reversed(holding.blocks[num_blocks:]))
        del holding.blocks[num_blocks:]

    def pin(self, match: Match, until_s: float) -> None:
        """Keep matched blocks from being taken until then; the later of two ends holds."""
        for block in reversed(match.blocks):
            if until_s <= self._pins.get(block, float("-inf")):
                continue
            self._cached.pop(block, None)
            self._pins[block] = until_s
            self._num_pin_ends += 1
            heappush(self._pin_ends, (until_s, self._num_pin_ends, block))

    def unpin_expired(self, now: float) -> None:
        while self._pin_ends and self._pin_ends[0][0] <= now:
            until_s, _, block = heappop(self._pin_ends)
            if self._pins.get(block) == until_s:
                self._unpin(block)

    def unpin_all(self) -> None:
        """Break every pin: a request that fits an empty cache must not wait for ever."""
        for block in tuple(self._pins):
            self._unpin(block)

    # The books

    def _tokens_of(self, holding: Holding, first: int, end: int) -> bytes:
        """Packed tokens of some of its blocks."""
        return packed(holding.tokens[first * self.block_size : end * self.block_size])

    def _difference(self, holding: Holding, number: int, tail: Content | None) -> tuple[int, int, int] | None:
        """The first token of its block `number` that is not as in the block last published after `tail`."""
        rival = self._beginnings.get(holding.namespace) if tail is None else tail.child
        if rival is None:
            return None
        place = first_difference(rival.tokens, self._tokens_of(holding, number, number + 1))
        position = number * self.block_size + (place or 0)
        return None if place is None else (position, holding.tokens[position], rival.token(place))

    def _extend_hashes(self, holding: Holding, num_blocks: int) -> None:
        """Hashes are a memo of the tokens, kept on the holding: computing them changes no state of the pool."""
        hashes = holding.hashes
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else holding.namespace.hash
        tokens, size = self._tokens_of(holding, len(hashes), num_blocks), self._block_bytes
        for start in range(0, len(tokens), size):
            parent = block_hash(parent, tokens[start : start + size])
            hashes.append(parent)

    def _hold(self, block: int) -> None:
        if self._references[block]:
            self.num_shared += 1
        else:
            self._cached.pop(block, None)
        self._references[block] += 1

    def _take(self, count: int) -> list[int]:
        """Blocks without a holder, their old content forgotten; the caller made sure that there are as many."""
        free, fresh, cached, references = self._free, self._fresh, self._cached, self._references
        taken = []
        for _ in range(count):
            if free:
                block = free.pop()
            elif len(fresh) > self._num_spared or not cached:
                block = fresh.pop()
            else:
                block, _ = cached.popitem(last=False)
                content = self._contents[block]
                if self.on_evict is not None and content is not None:
                    self.on_evict(block, content)
                self._unpublish(block)
                self.num_evictions += 1
            references[block] = 1
            taken.append(block)
        return taken

    def _let_go(self, blocks: Iterable[int]) -> None:
        """One holder of each gives it back."""
        references, num_shared = self._references, 0
        idle: list[int] = []
        for block in blocks:
            references[block] -= 1
            if references[block]:
                num_shared += 1
            else:
                idle.append(block)
        self.num_shared -= num_shared
        self._rest(idle)

    def _rest(self, blocks: Iterable[int]) -> None:
        """Put blocks that lost their last holders where they belong."""
        pins, leaving, contents, cached, free = self._pins, self._leaving, self._contents, self._cached, self._free
        for block in blocks:
            if block in pins or block in leaving:
                continue
            if contents[block]:
                cached[block] = None
            else:
                free.append(block)

    def _unpublish(self, block: int) -> None:
        content = self._contents[block]
        if content:
            del self._index[content.hash]
            parent = content.parent
            if isinstance(parent, Content):
                if parent.child is content:
                    parent.child = None
            elif self._beginnings.get(parent) is content:
                del self._beginnings[parent]
            for listener in self._listeners:
                listener.removed(content.hash)
        self._contents[block] = None

    def _forget(self, block: int) -> None:
        """A block holds nothing of use any more."""
        self._unpublish(block)
        self._pins.pop(block, None)
        self._cached.pop(block, None)
        if not self._references[block] and block not in self._leaving:
            self._free.append(block)

    def _unpin(self, block: int) -> None:
        if self._pins.pop(block, None) is not None and not self._references[block]:
            self._rest((block,))
