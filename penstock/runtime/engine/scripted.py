"""A runner that plays given tokens, masks or not: demos, tests and front-end work with no model."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.runtime.core.batch import Batch, Chunk, StepOutput
from penstock.runtime.core.runner import Masks


@dataclass(slots=True)
class ScriptedRunner:
    """Draws `script(row, position)` after each sampling chunk; remembers every batch if asked."""

    script: Callable[[int, int], int] = lambda row, position: position
    on_launch: Callable[[Batch], None] | None = None
    batches: list[Batch] | None = field(default=None)

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
        if self.batches is not None:
            self.batches.append(batch)
        if self.on_launch is not None:
            self.on_launch(batch)
        return StepOutput(tuple(self._draw(chunk) for chunk in batch.chunks))

    def _draw(self, chunk: Chunk) -> tuple[int, ...]:
        return (self.script(chunk.row, chunk.end),) if chunk.samples else ()
