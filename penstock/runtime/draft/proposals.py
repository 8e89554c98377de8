"""Drafts for the scheduler's sequences, between one step's commit and the next one's schedule.

Joins sequences to drafters. The speculator judges what a guess is worth; the scheduler decides whether there is room to check
it. The loops of the engine and of the simulator call it at the same places.
"""

from penstock.runtime.core.batch import Batch, Delta
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.draft.drafter import View
from penstock.runtime.draft.speculator import Speculator


class Proposals:
    """Belongs to the thread that drives the scheduler.

    Drafts follow the last token, so it must be known: with steps under way, `waits` says that the next should be planned only
    after they are over. Steps without drafts are launched ahead as ever. Waiting costs: once the token is known, the guess may
    be gone, and the step was not launched ahead.
    """

    def __init__(self, scheduler: Scheduler, speculator: Speculator) -> None:
        self.waits = False
        self.num_checked = 0
        self.num_accepted = 0
        self._scheduler = scheduler
        self.speculator = speculator

    def propose(self) -> bool:
        """Hand the scheduler what is worth checking in the next step. Whether drafters were asked at all."""
        scheduler = self._scheduler
        generating = [sequence for sequence in scheduler.generating if sequence.request.speculate != 0]
        has_waited, self.waits = self.waits, False
        if not generating:
            return False
        is_asked = any(sequence.request.speculate or sequence.request.prediction for sequence in generating)
        has_prompts = bool(scheduler.prompts)
        is_due = has_waited or self.speculator.is_due(scheduler.num_running)
        if (has_prompts or not is_due) and not is_asked:
            return False  # beside prompts a step is full: each draft would take the place of a prompt's token
        guesses = self.speculator.propose([_view(sequence) for sequence in generating], scheduler.num_running)
        is_drafted = False
        for sequence, guess in zip(generating, guesses):
            if guess.tokens:
                self.waits = True
                if not sequence.num_pending:
                    scheduler.draft(sequence, guess.tokens, guess.source)
                    is_drafted = True
        if self.waits and not is_drafted:
            self.speculator.exploration.pays = False  # it is asked for again once the tokens before it are known
        return True

    def take(self, batch: Batch, seconds: float, waited_s: float | None = None) -> None:
        """A step took so long, `waited_s` of it because it was not launched ahead where it could have been. Steps with prompts
        do not count: they tell nothing of what drafts cost. Nor do plain steps that were not launched ahead: without drafts
        they would have been."""
        num_tokens = num_drafts = 0
        for chunk in batch.chunks:
            if chunk.length - chunk.num_drafts != 1:
                return
            num_tokens += chunk.length
            num_drafts += chunk.num_drafts
        if waited_s is not None and not num_drafts:
            self.speculator.exploration.lose(waited_s)
            return
        self.speculator.cost.add(num_tokens, seconds)

    def observe(self, deltas: tuple[Delta, ...]) -> None:
        """Count accepted and rejected drafts, and forget the generations that have ended."""
        for delta in deltas:
            for drafts in delta.drafts:
                self.num_checked += drafts.num_checked
                self.num_accepted += drafts.num_accepted
            if delta.finish is not None:
                self.speculator.finish((delta.request_id, delta.choice))


def _view(sequence: Sequence) -> View:
    request = sequence.request
    return View(
        (sequence.request_id, sequence.choice),
        sequence.tokens,
        sequence.num_prompt,
        request.tenant,
        request.prediction,
        sequence.limit - len(sequence.tokens) - 1,
        request.speculate,
        -1 if sequence.row is None else sequence.row,
    )
