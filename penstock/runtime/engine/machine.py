"""An engine ready to run, and what was found while making it. Values only: they cross the process line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.runtime.engine.engine import Engine

Vector = tuple[float, ...]
Embed = Callable[[Sequence[tuple[int, ...]]], tuple[Vector, ...]]
"""One vector a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What clients and operators can learn of a loaded model."""

    model: str
    max_context: int
    """Longest prompt plus answer, in tokens."""
    vocab_size: int
    num_blocks: int
    block_size: int
    max_sequences: int
    max_waiting: int
    max_waiting_tokens: int
    memory: tuple[tuple[str, int], ...] = ()
    """(what, bytes) rows of the memory table."""
    max_batch_tokens: int = 0
    """Most tokens of a step; 0 if there are no steps."""
    device: str = "cpu"
    num_active_parameters: int = 0
    """Parameters that a token is multiplied with; 0 where nothing is."""
    embedding_size: int | None = None
    """Numbers in a vector; None when the model does not embed."""
    can_generate: bool = True
    cached_tokens: int | None = None
    """Tokens the cache holds, where blocks alone do not say."""
    offer: str = ""
    """Where peers fetch blocks: port, generation, bytes of a block; empty where none are offered."""
    long_context: str = ""
    """What is kept of a text where some is forgotten, as --long-context says it; empty where all is kept."""

    @property
    def num_cached_tokens(self) -> int:
        return self.num_blocks * self.block_size if self.cached_tokens is None else self.cached_tokens


class Machine(NamedTuple):
    """What `make_engine` of a composition root hands over."""

    engine: Engine
    facts: Facts
    embed: Embed | None = None
    close: Callable[[], None] | None = None
    """Called once the engine was told to stop and has: whoever computed with it ends too."""
