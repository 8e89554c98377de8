"""What the engine needs of whatever computes a batch."""

from typing import Protocol

from penstock.core.batch import Batch, StepOutput


class Ticket(Protocol):
    """A launched batch."""

    def result(self) -> StepOutput:
        """Wait for the step and return what it gave."""


class Runner(Protocol):
    """Computes batches in the order they are launched.

    A chunk may read blocks that an earlier chunk of the same batch fills, if that one is of more than one token: in each layer
    all keys and values are laid down before any such chunk attends. Steps of single tokens may do both in one launch.

    A batch that raises, at launch or at its result, must leave every row as it was before, so that it, or any part of it,
    can be launched again: `fresh` arrivals come again, KV writes repeat with the same values.
    """

    def launch(self, batch: Batch) -> Ticket:
        """Start a step. It may read tokens that the step before it has drawn but not yet reported."""
