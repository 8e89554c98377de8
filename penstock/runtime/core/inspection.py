"""A scheduler seen from outside at one moment, as values: blocks by state, their holders, shared prefixes.

Inspection changes nothing. It is not for every step: a large pool takes milliseconds to write down.
"""

from heapq import nsmallest
from itertools import islice, repeat
from typing import NamedTuple

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Content, unpacked
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence

FREE, HELD, SHARED, CACHED, PINNED, HELD_PINNED = range(6)
"""States of a block, as bytes of `PoolState.states`."""
NO_PREFIX = 255
MAX_PREFIXES = 12
NUM_FIRST_TOKENS = 24


class PrefixState(NamedTuple):
    """Published blocks that begin with the same one."""

    num_blocks: int
    num_references: int
    """References that running sequences hold on them, summed."""
    first_tokens: tuple[int, ...]
    first_block: int


class PoolState(NamedTuple):
    states: bytes
    """One byte a block."""
    num_evictions: int
    prefixes: tuple[PrefixState, ...]
    """The largest, largest first."""
    prefix_of: bytes
    """One byte a block: which of `prefixes` it belongs to, `NO_PREFIX` for none of them."""


class SequenceState(NamedTuple):
    """One generation in progress, or waiting."""

    request_id: int
    choice: int
    place: int
    """Its position in the queue, from 0; -1 if it runs."""
    num_prompt: int
    num_cached: int
    num_computed: int
    num_tokens: int
    """Generated so far."""
    blocks: tuple[int, ...]


def pool_state(pool: BlockPool) -> PoolState:
    references, contents, pinned = pool.books
    states = bytearray(map(min, references, repeat(SHARED)))
    for block, content in enumerate(contents):
        if content is not None and not references[block]:
            states[block] = CACHED
    for block in pinned:
        states[block] = HELD_PINNED if references[block] else PINNED
    prefixes, prefix_of = _prefixes(pool)
    return PoolState(bytes(states), pool.num_evictions, prefixes, prefix_of)


def _prefixes(pool: BlockPool) -> tuple[tuple[PrefixState, ...], bytes]:
    """Published blocks, by the block that their chain begins with; and for each block, which of them it belongs to."""
    roots: dict[int, Content] = {}
    """By block."""
    counts: dict[Content, list[int]] = {}
    first_blocks: dict[Content, int] = {}
    known: dict[Content, Content] = {}
    references, contents, _ = pool.books
    for block, content in enumerate(contents):
        if content is None:
            continue
        root = roots[block] = _root(content, known)
        if root is content:
            first_blocks[root] = block
        count = counts.setdefault(root, [0, 0])
        count[0] += 1
        count[1] += references[block]
    largest = sorted(counts, key=lambda root: (counts[root][1], counts[root][0]), reverse=True)[:MAX_PREFIXES]
    found = tuple(
        PrefixState(
            counts[root][0], counts[root][1], unpacked(root.tokens)[:NUM_FIRST_TOKENS], first_blocks.get(root, -1)
        )
        for root in largest
    )
    places: dict[Content | None, int] = {root: place for place, root in enumerate(largest)}
    return found, bytes(places.get(roots.get(block), NO_PREFIX) for block in range(len(contents)))


def _root(content: Content, known: dict[Content, Content]) -> Content:
    """The content that a chain begins with. Chains share links, so known links are kept."""
    links = []
    at = content
    while at not in known and isinstance(at.parent, Content):
        links.append(at)
        at = at.parent
    root = known.get(at, at)
    known.update(dict.fromkeys([*links, root], root))
    return root


def sequence_states(scheduler: Scheduler, max_sequences: int) -> tuple[SequenceState, ...]:
    """Running sequences in the order of admission, then waiting ones in theirs."""
    roster = scheduler.roster
    running = [_sequence_state(one, -1) for one in islice(roster.running, max_sequences)]
    first = nsmallest(max_sequences - len(running), roster.order, key=roster.order.rank)
    return (*running, *(_sequence_state(one, place) for place, one in enumerate(first)))


def _sequence_state(sequence: Sequence, place: int) -> SequenceState:
    return SequenceState(
        request_id=sequence.request_id,
        choice=sequence.choice,
        place=place,
        num_prompt=sequence.num_prompt,
        num_cached=0 if sequence.prefix is None else sequence.prefix.num_tokens,
        num_computed=min(sequence.num_computed, sequence.num_prompt),
        num_tokens=len(sequence.tokens) - sequence.num_prompt,
        blocks=tuple(sequence.blocks),
    )
