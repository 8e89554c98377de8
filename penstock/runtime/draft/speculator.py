"""Asks the drafters, judges their guesses by what came of earlier ones, and says what to check in the next step.

A guess stands until the next one is asked for. What was drawn since is compared with it, whether or not it was checked: so a
drafter that is switched off because its guesses are wrong, or because steps are full, is known to have got better when it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from penstock.runtime.draft.acceptance import Acceptance
from penstock.runtime.draft.drafter import NO_GUESS, Drafter, Guess, Key, View
from penstock.runtime.draft.exploration import Exploration
from penstock.runtime.draft.rule import LEAST_GAIN, choose_lengths
from penstock.runtime.draft.step_cost import StepCost

MAX_DRAFTS = 16
"""Most drafts of one sequence in one step, unless another number is given."""
PROBE, PROBES = 2, 2
"""Tokens that a drafter which computes is asked for although they would not pay, to notice when they would; in how many steps,
one after another: in the first it catches up with what was drawn since, and only the next takes the usual time."""


@dataclass(slots=True)
class Standing:
    """The last guess for a generation, and the length it had when it was made."""

    view: View
    guess: Guess
    num_tokens: int
    num_right: int = 0


class Speculator:
    """Belongs to the engine's thread. `length` pins the number of drafts; None leaves it to the rule."""

    def __init__(self, drafters: Sequence[Drafter], *, length: int | None = None, most: int = MAX_DRAFTS) -> None:
        self.cost = StepCost()
        self.acceptance = Acceptance()
        self.drafters = tuple(drafters)
        self._length = length
        self._most = most if length is None else length
        self._standing: dict[Key, Standing] = {}
        self.exploration = Exploration()
        self._num_probes = 0
        """Steps in which a drafter that computes is still tried."""

    def is_due(self, num_sequences: int) -> bool:
        """Drafters are asked before the next step: guesses pay, or finding out whether they do costs little."""
        is_known = self.cost.is_fresh(num_sequences)
        plain_s = self.cost.at_most(num_sequences) if is_known else 0.0
        return self.exploration.is_due(plain_s, is_free=self._length is not None or not is_known)

    def propose(self, views: Sequence[View], num_sequences: int) -> list[Guess]:
        """Drafts to check for each view in a step of so many sequences: guesses cut to what pays, empty where nothing does."""
        for view in views:
            self._learn(view)
        guesses = self._best(views, num_sequences)
        for view, guess in zip(views, guesses):
            self._stand(view, guess)
        lengths = self._lengths(views, guesses, num_sequences)
        self.exploration.pays = any(lengths)
        return [guess._replace(tokens=guess.tokens[:length]) for guess, length in zip(guesses, lengths)]

    def charge(self, seconds: float) -> None:
        """What the last `propose` took. Drafters that compute count their time themselves."""
        if not any(drafter.seconds(1) for drafter in self.drafters):
            self.exploration.charge(seconds)

    def finish(self, key: Key) -> None:
        """A generation has ended."""
        standing = self._standing.get(key)
        if standing is None:
            return
        self._learn(standing.view)
        del self._standing[key]
        self.acceptance.forget(key)
        for drafter in self.drafters:
            drafter.finish(standing.view)

    def _learn(self, view: View) -> None:
        standing = self._standing.get(view.key)
        if standing is None or not standing.guess.tokens:
            return
        drawn = view.tokens[standing.num_tokens :]
        right = self.acceptance.learn(view.key, standing.guess, standing.num_right, drawn)
        standing.num_right = standing.num_right + right if right == len(drawn) else len(standing.guess.tokens)
        standing.num_tokens = len(view.tokens)

    def _best(self, views: Sequence[View], num_sequences: int) -> list[Guess]:
        """For each view, the guess of all drafters with the most expected accepted tokens."""
        asked = [(drafter, self._asked(drafter, views, num_sequences)) for drafter in self.drafters]
        columns = zip(*(drafter.propose(views, most) for drafter, most in asked))
        return [self._likeliest(view.key, column) for view, column in zip(views, columns)]

    def _asked(self, drafter: Drafter, views: Sequence[View], num_sequences: int) -> int:
        """How many tokens the drafter is asked for. Where guessing itself takes time: as many as would pay, and once in a while
        a few although they would not, to notice when they would again."""
        if not drafter.seconds(1) or self._length is not None:
            return self._most
        if self._num_probes:
            self._num_probes -= 1
            return PROBE
        most = min(self._most, max((self.cost.reach - num_sequences) // max(len(views), 1), 1))
        chances = [self.acceptance.chances(view.key, Guess((0,) * most, drafter.name)) for view in views]
        best, length = num_sequences / self.cost(num_sequences) * LEAST_GAIN, 0
        expected = float(num_sequences)
        for count in range(1, most + 1):
            expected += sum(each[count - 1] for each in chances)
            seconds = self.cost(num_sequences + count * len(views)) + drafter.seconds(count)
            if expected / seconds > best:
                best, length = expected / seconds, count
        if not length and self.exploration.spend(PROBES * drafter.seconds(PROBE)):
            self._num_probes = PROBES - 1
            return PROBE
        return length

    def _likeliest(self, key: Key, guesses: Sequence[Guess]) -> Guess:
        known = [guess for guess in guesses if guess.tokens]
        if len(known) < 2:
            return known[0] if known else NO_GUESS
        return max(known, key=lambda guess: sum(self.acceptance.chances(key, guess)))

    def _stand(self, view: View, guess: Guess) -> None:
        """A guess whose tokens still agree is kept while there is no other: it can be compared further."""
        standing = self._standing.get(view.key)
        if standing is not None and not guess.tokens and standing.num_right < len(standing.guess.tokens):
            return
        self._standing[view.key] = Standing(view, guess, len(view.tokens))

    def _lengths(self, views: Sequence[View], guesses: Sequence[Guess], num_sequences: int) -> list[int]:
        rooms = [min(view.room, len(guess.tokens)) for view, guess in zip(views, guesses)]
        pins = [self._length if view.pinned is None else view.pinned for view in views]
        if None not in pins:
            return [min(pin or 0, room) for pin, room in zip(pins, rooms)]
        if not any(rooms) or not self.cost.is_fresh(num_sequences):
            free = [0] * len(views)
        else:
            chances = [
                self.acceptance.chances(view.key, guess)[:room] if pin is None else []
                for view, guess, room, pin in zip(views, guesses, rooms, pins)
            ]
            free = choose_lengths(chances, num_sequences, self._step_s(num_sequences))
        return [count if pin is None else min(pin, room) for count, pin, room in zip(free, pins, rooms)]

    def _step_s(self, num_sequences: int) -> Callable[[int], float]:
        """The time of a step by its width: without drafts the least that is likely, beyond what may be tried endless."""
        cost, plain_s, reach = self.cost, self.cost.at_most(num_sequences), self.cost.reach

        def seconds(width: int) -> float:
            return plain_s if width == num_sequences else cost(width) if width <= reach else inf

        return seconds
