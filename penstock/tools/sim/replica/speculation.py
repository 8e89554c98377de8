"""Speculative decoding in virtual time: the engine's own rule decides, drafts go through the scheduler, chance accepts
them.

With acceptance a and g drafts a round gives (1 - a^(g+1)) / (1 - a) tokens on average: 3.69 at a = 0.8, g = 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk, Delta, StepOutput
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import Guess, View
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.draft.rule import tokens_per_round
from penstock.runtime.draft.speculator import MAX_DRAFTS, Speculator
from penstock.tools.cost.cost import Cost
from penstock.tools.workload.workload import ANSWERED

MOST_DRAFTS = 64
_WRONG = 1


@dataclass(frozen=True, slots=True)
class Guessing:
    """How drafts are made and how good they are."""

    num_drafts: int | None
    """None leaves it to the engine's rule: as many as pay."""
    acceptance: float
    """Chance that a draft is accepted, given that all before it were."""
    draft_cost: float = 0.05
    """Time of making one draft for every sequence, as a share of the model's own step for them."""
    max_sequences: int | None = None
    """Above this many sequences in a step there are no drafts: a full batch has no idle compute to verify with."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_drafts is not None and not 1 <= self.num_drafts <= MOST_DRAFTS:
            raise ConfigError(f"{self.num_drafts} drafts a step: choose 1 to {MOST_DRAFTS}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ConfigError(f"the chance that a draft is accepted is {self.acceptance}; choose 0 to 1")
        if not 0.0 <= self.draft_cost <= 10.0:
            raise ConfigError(f"a draft costs {self.draft_cost} of a step; choose 0 to 10")

    @property
    def tokens_per_round(self) -> float:
        """Where all drafts that may be made are checked."""
        return tokens_per_round(self.acceptance, self.num_drafts or MAX_DRAFTS)


class ChanceDrafter:
    """Knows what the model draws, and guesses wrong with the chance of a rejection."""

    name = "chance"

    def __init__(self, acceptance: float, seed: str) -> None:
        self._acceptance = acceptance
        self._random = Random(seed)

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [Guess(self._tokens(most), self.name) for _ in views]

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        pass

    def _tokens(self, most: int) -> tuple[int, ...]:
        num_right = 0
        while num_right < most and self._random.random() < self._acceptance:
            num_right += 1
        return (ANSWERED,) * num_right + (_WRONG,) * (most - num_right)


class Speculation:
    """One replica's drafts. The same seed and the same batches give the same acceptances."""

    def __init__(self, guessing: Guessing, name: str, scheduler: Scheduler) -> None:
        self._guessing = guessing
        self._scheduler = scheduler
        drafter = ChanceDrafter(guessing.acceptance, f"{guessing.seed} drafts {name}")
        self.proposals = Proposals(scheduler, Speculator([drafter], length=guessing.num_drafts))

    def propose(self) -> None:
        most = self._guessing.max_sequences
        if most is None or self._scheduler.num_running <= most:
            self.proposals.propose()

    def output(self, batch: Batch) -> StepOutput:
        """Tokens of a step that has been computed."""
        return StepOutput(tuple([(ANSWERED,) * _num_drawn(chunk) for chunk in batch.chunks]))

    def take(self, batch: Batch, seconds: float, deltas: tuple[Delta, ...]) -> None:
        """A step took this long, with this result."""
        self.proposals.take(batch, seconds)
        self.proposals.observe(deltas)

    def draft_s(self, batch: Batch, cost: Cost) -> float:
        """What drafting for this batch took: as many draft steps, one after the other, as the longest draft has tokens."""
        drafted = [chunk._replace(length=1, num_drafts=0) for chunk in batch.chunks if chunk.num_drafts]
        if not drafted:
            return 0.0
        num_drafts = max(chunk.num_drafts for chunk in batch.chunks)
        return num_drafts * self._guessing.draft_cost * cost.step_s(Batch(batch.step, tuple(drafted)))


def _num_drawn(chunk: Chunk) -> int:
    if not chunk.samples:
        return 0
    drafts = chunk.drafts
    return 1 + (drafts.index(_WRONG) if _WRONG in drafts else len(drafts))
