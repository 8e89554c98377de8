"""Beam search: the likeliest whole sequences, kept side by side.

The definition: at each step every one-token continuation of every living beam is ranked by its log probability. From the
top, those that end the text are set aside and the others live on, until `width` live. At the last step all stop. The best of
those set aside and those alive win, by log probability over length ** length_penalty.

Knows no engine: it is handed a function that tells the likeliest next tokens.
"""

import math
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass

from penstock.errors import RequestError

MAX_RANKED = 128
"""Continuations of one answer that an engine tells at most."""
TokenIds = tuple[int, ...]
Ranked = Sequence[tuple[int, float]]
Likeliest = Callable[[list[TokenIds], int], list[Ranked]]
"""For each answer so far, so many of the likeliest next tokens with their log probabilities, likeliest first."""

Searching = Generator[list[TokenIds], list[Ranked], list["Beam"]]


@dataclass(frozen=True, slots=True)
class Beam:
    """One answer. `token_ids` hold the token that ended it, if one did."""

    token_ids: TokenIds = ()
    logprob: float = 0.0
    is_ended: bool = False
    text: str = ""

    def score(self, length_penalty: float) -> float:
        """What beams are ranked by in the end; a larger penalty favours longer answers."""
        return self.logprob / math.pow(max(len(self.token_ids), 1), length_penalty)


@dataclass(frozen=True, slots=True)
class BeamRules:
    width: int
    max_tokens: int
    length_penalty: float = 1.0
    ends: Collection[int] = ()
    """Tokens that end an answer."""

    def __post_init__(self) -> None:
        widest = MAX_RANKED - len(self.ends)
        if not 1 <= self.width <= widest:
            raise RequestError(f"width is {self.width}; it must be from 1 to {widest}", param="beam_width")
        if not 1 <= self.max_tokens <= 2**31:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be 1 or more", param="max_tokens")
        if not -10.0 <= self.length_penalty <= 10.0:
            raise RequestError(
                f"length_penalty is {self.length_penalty}; it must be from -10 to 10", param="length_penalty"
            )

    @property
    def num_asked(self) -> int:
        """Continuations of one beam that can matter: `width` that live, and all that end."""
        return self.width + len(self.ends)


def beam_search(likeliest: Likeliest, rules: BeamRules) -> list[Beam]:
    """The best `width` answers, best first; fewer where there are no more."""
    search = searching(rules)
    answers = next(search)
    while True:
        try:
            answers = search.send(likeliest(answers, rules.num_asked))
        except StopIteration as done:
            found: list[Beam] = done.value
            return found


def searching(rules: BeamRules) -> Searching:
    """The same for whoever asks in a way of its own: yields living answers, is sent what may follow each, returns the best."""
    alive, ended = [Beam()], list[Beam]()
    for _ in range(rules.max_tokens):
        if not alive or _is_decided(alive, ended, rules):
            break
        alive, newly_ended = _grown(alive, (yield [beam.token_ids for beam in alive]), rules)
        ended = _best(ended + newly_ended, rules)
    return _best(ended + alive, rules)


def _grown(alive: list[Beam], nexts: list[Ranked], rules: BeamRules) -> tuple[list[Beam], list[Beam]]:
    grown = [
        Beam((*beam.token_ids, token), beam.logprob + logprob, token in rules.ends)
        for beam, ranked in zip(alive, nexts, strict=True)
        for token, logprob in ranked
    ]
    living: list[Beam] = []
    ending: list[Beam] = []
    for beam in sorted(grown, key=lambda beam: -beam.logprob):
        if len(living) == rules.width:
            break
        (ending if beam.is_ended else living).append(beam)
    return living, ending


def _is_decided(alive: list[Beam], ended: list[Beam], rules: BeamRules) -> bool:
    """No living beam can still come among the best: its log probability only falls from here."""
    if len(ended) < rules.width:
        return False
    best = max(beam.logprob for beam in alive)
    lengths = (len(alive[0].token_ids) + 1, rules.max_tokens)
    return all(
        best / math.pow(length, rules.length_penalty) < ended[-1].score(rules.length_penalty) for length in lengths
    )


def _best(beams: list[Beam], rules: BeamRules) -> list[Beam]:
    return sorted(beams, key=lambda beam: -beam.score(rules.length_penalty))[: rules.width]
