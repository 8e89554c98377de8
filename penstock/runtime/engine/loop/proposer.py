"""What is proposed for the next step: guesses of drafters, and tokens that a grammar forces. What both learn from a step."""

from collections.abc import Callable, Sized
from dataclasses import dataclass

from penstock.runtime.core.batch import Batch, Delta
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.engine.grammar_state import GrammarState, StepMasks
from penstock.runtime.engine.loop.listeners import StepArrival, StepListener


@dataclass(eq=False)
class Proposer(StepListener):
    """Belongs to the loop's thread. As a listener it is the drafts' clock: it tells them what steps cost."""

    _scheduler: Scheduler
    _clock: Callable[[], float]
    _depth: int
    proposals: Proposals | None
    grammar_state: GrammarState | None
    """Holds sequences to their grammars; without it a request with a grammar is refused."""
    _output_s: float = 0.0
    """When the last step's tokens came."""
    _was_busy: bool = False
    """Something was left to do then."""
    _proposing_s: float = 0.0
    """How long the last guessing took."""

    @property
    def is_needed(self) -> bool:
        """Something may be proposed, or some sequence is held to a grammar."""
        return self.proposals is not None or bool(self.grammar_state)

    @property
    def draws_late(self) -> bool:
        """The newest step must not draw before the tokens of all before it are known: its masks follow from them."""
        return bool(self.grammar_state)

    def propose(self, flights: Sized, collect: Callable[[], tuple[Delta, ...]]) -> tuple[Delta, ...]:
        """Have drafts made for the next step. If they need tokens still in flight, those are awaited first."""
        deltas: tuple[Delta, ...] = ()
        proposals = self.proposals
        if proposals is not None:
            while flights and proposals.waits:
                deltas += collect()
            begin_s = self._clock()
            was_asked = proposals.propose()
            self._proposing_s = self._clock() - begin_s
            if was_asked:
                proposals.speculator.charge(self._proposing_s)
        if self.grammar_state:
            self.grammar_state.propose(self._scheduler, self._depth)
        return deltas

    def masks(self, batch: Batch) -> StepMasks | None:
        return self.grammar_state.masks(batch, self._scheduler) if self.grammar_state else None

    def follow(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """The deltas as the grammars leave them: a choice whose text is complete ends."""
        return self.grammar_state.follow(deltas, self._scheduler) if self.grammar_state else deltas

    def observe(self, deltas: tuple[Delta, ...]) -> None:
        """Deltas of a whole turn, which drafters learn from."""
        if self.proposals is not None:
            self.proposals.observe(deltas)

    def arrived(self, arrival: StepArrival) -> None:
        if self.proposals is not None:
            # A step that had to wait for the tokens before it pays for what was done between them, guessing apart.
            launched_s = arrival.launched_s
            between_s = max(launched_s - self._output_s - self._proposing_s, 0.0) if self._was_busy else 0.0
            has_waited = self._depth > 1 and launched_s >= self._output_s
            self.proposals.take(arrival.batch, arrival.seconds + between_s, between_s if has_waited else None)
        self._output_s = arrival.now

    def ended(self, now: float, *, has_work: bool) -> None:
        self._was_busy = self._scheduler.has_work
