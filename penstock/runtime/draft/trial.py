"""What drafters would have gained on a known text: every guess is compared with the text.

Pure: what steps take is given. The text is walked as an engine would generate it, by the same speculator and rule.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.runtime.core.batch import num_agreeing
from penstock.runtime.draft.drafter import Drafter, View
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.draft.step_cost import StepCost


class DraftTrial(NamedTuple):
    """One text, generated with drafts."""

    num_tokens: int
    num_steps: int
    num_checked: int
    num_accepted: int
    seconds: float
    plain_s: float
    """What it would take without drafts."""

    @property
    def acceptance(self) -> float:
        return self.num_accepted / self.num_checked if self.num_checked else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def gain(self) -> float:
        """Tokens per second over those without drafts."""
        return self.plain_s / self.seconds if self.seconds else 1.0


def try_drafts(
    drafters: Sequence[Drafter], text: Sequence[int], num_prompt: int, step_s: StepCost, length: int | None = None
) -> DraftTrial:
    """Generate `text` after its first `num_prompt` tokens, as a target that draws exactly these tokens."""
    speculator = Speculator(drafters, length=length)
    speculator.cost = step_s
    known = list(text[:num_prompt])
    num_steps = num_checked = num_accepted = 0
    seconds = 0.0
    while len(known) < len(text):
        step_s.add(1, step_s(1))  # as fresh as if it had just been measured
        room = len(text) - len(known) - 1
        (guess,) = speculator.propose([View((0, 0), known, num_prompt, room=room, row=0)], 1)
        right = num_agreeing(guess.tokens, text, len(known))
        width = 1 + len(guess.tokens)
        taken = step_s(width) + sum(drafter.seconds(len(guess.tokens)) for drafter in drafters)
        seconds += taken
        num_steps += 1
        num_checked += len(guess.tokens)
        num_accepted += right
        known.extend(text[len(known) : len(known) + right + 1])
    speculator.finish((0, 0))
    num_tokens = len(text) - num_prompt
    return DraftTrial(num_tokens, num_steps, num_checked, num_accepted, seconds, num_tokens * step_s(1))
