"""Attention over a bounded number of tokens, whatever the text: lossy ways to serve a full-attention model without end.

A sequence keeps so many entries of every head, as a state of a fixed size; places of keys are counted among what is kept.
Every `PIECE` positions, what is beyond them is forgotten:

    streaming   the first tokens, which attention rests on, and the last (StreamingLLM)
    h2o         of each head the entries that were attended to most, and the last (heavy hitters)
"""

from dataclasses import dataclass
from typing import Literal

from penstock.runtime.models.kinds.attention import GQA
from penstock.runtime.models.kinds.recurrent import Recurrent

PIECE = 64
"""Positions between two forgettings, counted from the beginning of a text: how prompts are cut changes nothing."""


@dataclass(frozen=True, slots=True)
class Bounded(Recurrent):
    """Grouped-query attention that forgets."""

    attention: GQA
    keeps: Literal["first", "heaviest"]
    num_kept: int
    """Of the first, or heaviest, entries."""
    num_recent: int

    @property
    def num_heads(self) -> int:
        return self.attention.num_heads

    @property
    def q_size(self) -> int:
        return self.attention.q_size

    @property
    def budget(self) -> int:
        """Entries that are left after each forgetting."""
        return self.num_kept + self.num_recent

    @property
    def capacity(self) -> int:
        return self.budget + PIECE

    @property
    def state_values(self) -> int:
        """Keys, values and how much each entry was attended to."""
        return self.capacity * self.attention.num_kv_heads * (2 * self.attention.head_dim + 1)

    def num_parameters(self, hidden_size: int) -> int:
        return self.attention.num_parameters(hidden_size)
