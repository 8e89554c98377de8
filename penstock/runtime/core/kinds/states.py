"""Slots for states: what a sequence's recurrent layers have made of all its tokens so far, in a fixed number of bytes.

A slot is written by one sequence, or holds a checkpoint: the state after a published prefix, which later sequences read and
never write. A chunk that begins where a checkpoint is to stay reads the slot before it and writes another. So does a chunk with
drafts: if one of them is wrong, the next chunk begins from the same slot again, with the tokens that were right.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.runtime.core.prefix import Content

NO_STATE = -1
"""In place of the slot that a chunk reads: its sequence begins."""


class Checkpointed(Content):
    """Content whose other groups have blocks of their own, and perhaps the state after it."""

    __slots__ = ("is_lost", "others", "state")

    def __init__(self, hash: bytes, tokens: bytes, parent: "Content | object") -> None:
        super().__init__(hash, tokens, parent)  # type: ignore[arg-type]
        self.others: dict[int, tuple[int, ...]] = {}
        """Block ids, by group."""
        self.state: int | None = None
        self.is_lost = False
        """It was not computed, nor what continues it."""


class PendingCheckpoint(NamedTuple):
    """A state that stays once the tokens before it are published."""

    num_tokens: int
    slot: int
    rolls: bool
    """A later checkpoint of the same sequence takes its place: an answer keeps only its last."""


@dataclass(slots=True, eq=False)
class StateHolding:
    """What one sequence has of the slots: written by `StateSlots` alone."""

    slot: int
    """Written by the next chunk."""
    source: int | None
    """Read, and not written, by the last chunk, or the first: a checkpoint; kept until the next one is planned."""
    is_begun: bool = False
    is_reverted: bool = False
    """The next chunk reads what the last one did: a wrong draft is in what that wrote."""
    pending: list[PendingCheckpoint] = field(default_factory=list)
    rolling: Checkpointed | None = None


class StateSlots:
    """Invariant: a slot's references are its sequence, its checkpoint, those that read it and those pending; see `check`."""

    def __init__(self, num_states: int, is_pinned: Callable[[Checkpointed], bool]) -> None:
        self._free = list(range(num_states - 1, -1, -1))
        self._references = [0] * num_states
        self._checkpoints: OrderedDict[Checkpointed, int] = OrderedDict()
        """Least recently used first."""
        self._is_pinned = is_pinned

    def has_room(self, found: int | None) -> bool:
        """A sequence could begin now, from a checkpoint or without."""
        return bool(self._free) or self._victim(found) is not None

    def can_revert(self, held: StateHolding) -> bool:
        """The next chunk could leave what it reads as it is."""
        is_freed = held.source is not None and self._references[held.source] == 1
        return held.is_reverted or is_freed or self.has_room(None)

    def begin(self, found: int | None, content: Checkpointed | None) -> StateHolding:
        """Give a sequence its slot; the caller made sure that there is one."""
        if found is not None:
            self._references[found] += 1
            if content is not None and content in self._checkpoints:
                self._checkpoints.move_to_end(content)
        slot = self._take()
        if slot is None:
            raise RuntimeError("a sequence was given a state where none is free")
        return StateHolding(slot, found)

    def advance(
        self, held: StateHolding, start: int, *, keeps: bool, rolls: bool, drafts: bool = False
    ) -> tuple[int, ...]:
        """A chunk begins at `start`: (the slot it reads, the slot it writes) where they are not those of the chunk before.

        With `keeps` the state before it stays as a checkpoint, if there is a slot for what follows; with `drafts` it stays
        until the next chunk, and the caller made sure that there is one.
        """
        if not held.is_begun:
            held.is_begun = True
            return NO_STATE if held.source is None else held.source, held.slot
        if held.is_reverted and held.source is not None:
            held.is_reverted = False
            return held.source, held.slot
        self._let_go_of_source(held)
        if not keeps and not drafts:
            return ()
        if rolls and held.rolling is not None and not self._free:
            self.forget(held.rolling)  # rather its own last checkpoint than another's
            held.rolling = None
        slot = self._take()
        if slot is None:
            return ()
        old, held.slot = held.slot, slot
        if keeps:
            held.pending.append(PendingCheckpoint(start, old, rolls))
            self._references[old] += 1  # it is pending, and it is read
        held.source = old
        return old, slot

    def publish(self, held: StateHolding, after: Callable[[int], tuple[bool, Checkpointed | None]]) -> None:
        """Tokens are published: the checkpoints among them can be found from now on. `after` says of a number of tokens
        whether they are, and what they end with."""
        while held.pending:
            place, slot, rolls = held.pending[0]
            is_published, content = after(place)
            if not is_published:
                return
            del held.pending[0]
            if content is None or content.state is not None:
                self._drop(slot)
                continue
            content.state = slot
            self._checkpoints[content] = slot
            if rolls:
                if held.rolling is not None:
                    self.forget(held.rolling)
                held.rolling = content

    def forget(self, content: Checkpointed) -> None:
        if content.state is not None:
            slot, content.state = content.state, None
            del self._checkpoints[content]
            self._drop(slot)

    def release(self, held: StateHolding) -> None:
        self._let_go_of_source(held)
        self._drop(held.slot)
        for pending in held.pending:
            self._drop(pending.slot)

    def check(self, holders: Iterable[StateHolding]) -> None:
        counts = [0] * len(self._references)
        for slot in self._checkpoints.values():
            counts[slot] += 1
        for held in holders:
            counts[held.slot] += 1
            for slot in (*(pending.slot for pending in held.pending), *(() if held.source is None else (held.source,))):
                counts[slot] += 1
            if held.is_reverted and held.source is None:
                raise RuntimeError("a state is to begin again from a slot that was let go")
        if counts != self._references:
            raise RuntimeError("references of states differ from the sequences and checkpoints that have them")
        if sorted(self._free) != [slot for slot, count in enumerate(counts) if not count]:
            raise RuntimeError("free states and held ones do not add up")
        if any(content.state != slot for content, slot in self._checkpoints.items()):
            raise RuntimeError("a checkpoint is not where its content says")

    def _let_go_of_source(self, held: StateHolding) -> None:
        if held.source is not None:
            self._drop(held.source)
            held.source = None

    def _victim(self, found: int | None = None) -> Checkpointed | None:
        """The checkpoint to give up: the least recently used one that no chunk reads and no pin keeps."""
        references = self._references
        for content, slot in self._checkpoints.items():
            if references[slot] == 1 and slot != found and not self._is_pinned(content):
                return content
        return None

    def _take(self) -> int | None:
        if not self._free:
            victim = self._victim()
            if victim is None:
                return None
            self.forget(victim)
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def _drop(self, slot: int) -> None:
        self._references[slot] -= 1
        if not self._references[slot]:
            self._free.append(slot)
