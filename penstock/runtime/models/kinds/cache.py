"""What a model must remember of a sequence: layers that share a kind of cache, and where each layer's numbers lie.

Sizing, cost, runners and the module builder read the same groups. A block of any group is made of pages, all of one size:

    page        | slot 0 | slot 1 | ... |        one slot a layer of the first group
    full        layers 0, 6, 12                  one page a block
    window      layers 1-5, 7-11, 13-17          five pages a block, each with a table of its own
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Kind = Literal["full", "window", "latent", "state", "cross"]


class CachedPart(Protocol):
    """What of a layer decides what is remembered for it."""

    @property
    def window(self) -> int | None: ...

    @property
    def kv_values_per_token(self) -> int: ...

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """Of one token's numbers: layers of one shape can share memory."""

    @property
    def state_values(self) -> int: ...

    @property
    def kind(self) -> Kind: ...


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that remember alike."""

    kind: Kind
    layers: tuple[int, ...]
    window: int | None = None
    """Tokens for which it is kept; None for all."""
    values_per_token: int = 0
    values_per_sequence: int = 0
    """A state's, whatever the context."""

    def values_in_sight(self, length: int) -> int:
        """Numbers that a sequence of this length still needs."""
        return self.values_per_sequence + self.values_per_token * min(length, self.window or length)


def cache_groups(parts: Sequence[CachedPart]) -> tuple[CacheGroup, ...]:
    """By kind: all that is kept whole first, then windows, the longest first, then states."""
    found: dict[tuple[int, int, Kind], list[int]] = {}
    for number, part in enumerate(parts):
        if part.kv_values_per_token:
            found.setdefault((part.window is not None, -(part.window or 0), part.kind), []).append(number)
    groups = [
        CacheGroup(kind, tuple(layers), -window or None, sum(parts[each].kv_values_per_token for each in layers))
        for (_, window, kind), layers in sorted(found.items())
    ]
    stateful = tuple(number for number, part in enumerate(parts) if part.state_values)
    if stateful:
        values = sum(parts[number].state_values for number in stateful)
        groups.append(CacheGroup("state", stateful, values_per_sequence=values))
    return tuple(groups)


class TableGroup(NamedTuple):
    """A group as block tables see it."""

    window: int | None
    width: int
    """Pages, and tables, that its blocks take."""


class CacheLayout(NamedTuple):
    """Where every layer's keys lie: which of a row's block tables it reads, and which slot of a page is its own."""

    groups: tuple[TableGroup, ...]
    num_slots: int
    places: tuple[tuple[int, int] | None, ...]
    """By layer: table and slot; None where it keeps no blocks."""
    slot_values: int
    """Numbers of a token in a slot."""

    @property
    def num_tables(self) -> int:
        return sum(group.width for group in self.groups)

    def table(self, number: int) -> int:
        """Which of a row's block tables a layer reads; the first where it keeps no blocks."""
        place = self.places[number]
        return place[0] if place else 0

    @property
    def page_values(self) -> int:
        """Numbers of a token in a page."""
        return self.num_slots * self.slot_values


def cache_layout(parts: Sequence[CachedPart], *, frees: bool = True) -> CacheLayout:
    """Without `frees`, or where layers keep unlike numbers, windows are kept as if they were full."""
    groups = [group for group in cache_groups(parts) if group.kind != "state"]
    paged = sorted(number for group in groups for number in group.layers)
    shapes = {parts[number].cache_shape for number in paged}
    if not frees or len(shapes) > 1 or all(group.window is None for group in groups):
        places: list[tuple[int, int] | None] = [None] * len(parts)
        for slot, number in enumerate(paged):
            places[number] = 0, slot
        mean = -(-sum(parts[number].kv_values_per_token for number in paged) // max(len(paged), 1))
        return CacheLayout((TableGroup(None, 1),), len(paged), tuple(places), mean)
    whole = tuple(number for group in groups if group.window is None for number in group.layers)
    windows = [group for group in groups if group.window is not None]
    firsts = whole or windows.pop(0).layers
    first_window = None if whole else parts[firsts[0]].window
    num_slots = len(firsts)
    places = [None] * len(parts)
    tables = [TableGroup(first_window, 1)]
    for slot, number in enumerate(firsts):
        places[number] = 0, slot
    num_tables = 1
    for group in windows:
        for place, number in enumerate(group.layers):
            places[number] = num_tables + place // num_slots, place % num_slots
        width = -(-len(group.layers) // num_slots)
        tables.append(TableGroup(group.window, width))
        num_tables += width
    return CacheLayout(tuple(tables), num_slots, tuple(places), parts[paged[0]].kv_values_per_token)
