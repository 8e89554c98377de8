"""How long each kind of cache is kept, as the pool and the limits see it. What is in it is known to models and runtime."""

from typing import NamedTuple


class BlockGroup(NamedTuple):
    """Layers that keep their keys alike: they share block tables, and free their blocks together."""

    window: int | None = None
    """Positions that a query reads, its own included; None reads all. Blocks behind the window are freed."""
    width: int = 1
    """Block ids that a block of this group takes: all groups take theirs from one pool, so one may need several."""

    def first_read(self, position: int, block_size: int) -> int:
        """The first block that the query at a position reads."""
        return 0 if self.window is None else max(position - self.window + 1, 0) // block_size

    def most_blocks(self, num_tokens: int, block_size: int, ahead: int) -> int:
        """Blocks that one sequence of so many tokens ever holds at a time, if steps have at most `ahead` of them."""
        num_all = -(-num_tokens // block_size)
        if self.window is None:
            return num_all
        return min(num_all, (self.window + ahead) // block_size + MARGIN_BLOCKS)


MARGIN_BLOCKS = 3
"""A window begins and ends within blocks, and the step after it takes one before that is freed."""


class CacheGroups(NamedTuple):
    """All kinds of cache of a model. The first group names prefixes; further ones are read back in part."""

    first: BlockGroup = BlockGroup()
    others: tuple[BlockGroup, ...] = ()
    num_states: int = 0
    """States of a fixed size that there is memory for; 0 for a model that has none."""

    @property
    def is_plain(self) -> bool:
        """Every layer keeps everything: block tables are all there is."""
        return self == PLAIN

    @property
    def width(self) -> int:
        """Block ids that one more block of every group takes."""
        return self.first.width + sum(group.width for group in self.others)

    def most_ids(self, num_tokens: int, block_size: int, ahead: int) -> int:
        """Block ids that one sequence of so many tokens ever holds at a time."""
        return sum(
            group.width * group.most_blocks(num_tokens, block_size, ahead) for group in (self.first, *self.others)
        )


PLAIN = CacheGroups()
