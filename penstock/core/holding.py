"""What one holder has of the KV blocks: written by the pool alone, read by whoever holds it."""

from penstock.core.prefix import Content, Namespace


class Holding:
    """Blocks in the order of positions, and how far they are published. Empty when made and after a release.

    `tokens` is the holder's own list, which grows; only what is published is taken as final.
    """

    __slots__ = ("blocks", "hashes", "namespace", "num_published", "tail", "tokens")

    def __init__(self, tokens: list[int], namespace: Namespace) -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.blocks: list[int] = []
        """One list for life: whoever reads it may keep it."""
        self.hashes: list[bytes] = []
        """Of full blocks, from the first; a memo of the tokens."""
        self.num_published = 0
        """Blocks offered to others, counted from the first."""
        self.tail: Content | None = None
        """What the last published block holds."""
