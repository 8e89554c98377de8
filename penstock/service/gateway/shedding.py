"""Who is refused when the fleet is nearly full: by chance, more of them the fuller it is, the least important tiers first.

    chance
      1 |                 /|        free:   from 0.80
        |              / / |        middle: from 0.87
        |           / / /  |        top:    from 0.94
      0 +----------+-+-+---+-- load
                0.80      1.0
Pure: the draw is a number from 0 to 1 that the caller brings.
"""

from typing import NamedTuple

FIRST = 0.8
"""Load from which the least important are shed."""
LAST = 0.94
"""Load from which the most important are."""


class FleetLoad(NamedTuple):
    """How full a fleet is, in shares of what it can do; 1 is full."""

    queue: float = 0.0
    """Requests it has, of those it may have."""
    kv: float = 0.0
    """KV caches in use, where requests wait for them."""
    wait: float = 0.0
    """Predicted wait for a first token, of the longest one wants."""

    @property
    def worst(self) -> float:
        return max(self)

    @property
    def reason(self) -> str:
        return max(zip(self, self._fields), default=(0.0, "queue"))[1]


def shed_chance(load: float, rank: float) -> float:
    """`rank` 0 is the least important tier, 1 the most."""
    start = FIRST + (LAST - FIRST) * min(max(rank, 0.0), 1.0)
    return min(max((load - start) / (1.0 - start), 0.0), 1.0)
