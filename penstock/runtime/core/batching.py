"""When waiting sequences may join: continuous batching, and the two baselines it replaced.

All three run the same steps over the same paged cache. The baselines behave as the systems of their time did: a batch is
formed whole, reserves its full length at once (it cannot preempt), computes all prompts before it generates, and admits no
sequence until its last one ends. They are spared what better systems of that time had already avoided: padding, and holding
back finished answers.
"""

from typing import NamedTuple


class Batching(NamedTuple):
    joins: bool
    """Sequences may join a batch that is running."""
    gather_s: float = 0.0
    """How long an idle engine waits for a batch to fill."""

    def opens_s(self, since: float, *, is_full: bool) -> float:
        """When an idle engine may start a batch for the waiting sequences, given since when the first of them waits."""
        return since if is_full else since + self.gather_s


CONTINUOUS = Batching(joins=True)
STATIC = Batching(joins=False)
"""All sequences that wait when the engine becomes idle make the next batch."""


def dynamic(gather_s: float) -> Batching:
    """Like static, but a batch that is not full waits a moment for others."""
    return Batching(joins=False, gather_s=gather_s)
