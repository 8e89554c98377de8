"""Speculative decoding in virtual time: drafts go through the scheduler's own mechanism, and chance says which come true.

With acceptance a and g drafts a round gives (1 - a^(g+1)) / (1 - a) tokens on average: 3.69 at a = 0.8, g = 5.
"""

from dataclasses import dataclass
from random import Random

from penstock.core.batch import Batch, Chunk, StepOutput
from penstock.cost.cost import Cost
from penstock.errors import ConfigError

MAX_DRAFTS = 64
_TOKEN = 0


@dataclass(frozen=True, slots=True)
class Guessing:
    """How drafts are made and how good they are."""

    num_drafts: int
    acceptance: float
    """Chance that a draft is accepted, given that all before it were."""
    draft_cost: float = 0.05
    """Time of making one draft for every sequence, as a share of the model's own step for them."""
    max_sequences: int | None = None
    """Above this many sequences in a step nobody drafts: a full batch has no idle compute to verify with."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_drafts <= MAX_DRAFTS:
            raise ConfigError(f"{self.num_drafts} drafts a step: choose 1 to {MAX_DRAFTS}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ConfigError(f"the chance that a draft is accepted is {self.acceptance}; choose 0 to 1")
        if not 0.0 <= self.draft_cost <= 10.0:
            raise ConfigError(f"a draft costs {self.draft_cost} of a step; choose 0 to 10")

    @property
    def tokens_per_round(self) -> float:
        a, g = self.acceptance, self.num_drafts
        return float(g + 1) if a == 1.0 else (1.0 - a ** (g + 1)) / (1.0 - a)


class Speculation:
    """One replica's drafts. The same seed and the same batches give the same luck."""

    def __init__(self, guessing: Guessing, name: str) -> None:
        self._guessing = guessing
        self._random = Random(f"{guessing.seed} drafts {name}")
        self.num_drafted = 0
        self.num_accepted = 0

    def output(self, batch: Batch) -> StepOutput:
        """Tokens of a step that has been computed, and drafts for the next."""
        tokens = tuple([(_TOKEN,) * self._num_drawn(chunk) for chunk in batch.chunks])
        guessing = self._guessing
        if guessing.max_sequences is not None and len(batch.chunks) > guessing.max_sequences:
            return StepOutput(tokens)
        drafts = (_TOKEN,) * guessing.num_drafts
        return StepOutput(tokens, tuple([drafts if chunk.samples else () for chunk in batch.chunks]))

    def draft_s(self, batch: Batch, cost: Cost) -> float:
        """What drafting for this batch took: as many draft steps, one after the other, as the longest draft has tokens."""
        drafted = [chunk._replace(length=1, num_drafts=0) for chunk in batch.chunks if chunk.num_drafts]
        if not drafted:
            return 0.0
        num_drafts = max(chunk.num_drafts for chunk in batch.chunks)
        return num_drafts * self._guessing.draft_cost * cost.step_s(Batch(batch.step, tuple(drafted)))

    def _num_drawn(self, chunk: Chunk) -> int:
        if not chunk.samples:
            return 0
        accepted = 0
        while accepted < chunk.num_drafts and self._random.random() < self._guessing.acceptance:
            accepted += 1
        self.num_drafted += chunk.num_drafts
        self.num_accepted += accepted
        return 1 + accepted
