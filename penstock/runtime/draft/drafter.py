"""What every drafter does, and the values it reads and gives."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Key = tuple[int, int]
"""Request id and choice: one generation."""


class View(NamedTuple):
    """What a drafter may see of a generation. Its tokens are only ever appended to: neither preemption nor a failed step takes
    one back, so a drafter's state is a function of the tokens it has seen."""

    key: Key
    tokens: Sequence[int]
    """Prompt and answer; not to be written."""
    num_prompt: int
    tenant: str = ""
    prediction: Sequence[int] = ()
    """What the client expects the answer to be, as tokens."""
    room: int = 64
    """Most drafts that may be checked in its next step."""
    pinned: int | None = None
    """Drafts a step that the client asked for; None leaves it to the rule."""
    row: int = -1
    """The runner's row of the generation, where a drafter finds what the target left there; -1 for none."""


class Guess(NamedTuple):
    """Tokens that may come next."""

    tokens: tuple[int, ...]
    source: str
    """Name of the drafter."""
    match: int = 0
    """Tokens before the guess that agree with where it was found: the more, the likelier it is right."""


NO_GUESS = Guess((), "")


class Drafter(Protocol):
    """Guesses the next tokens of generations. A guess changes how fast text comes, never which text."""

    name: str

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        """One guess for each view, of at most so many tokens; an empty one where it has none."""

    def seconds(self, length: int) -> float:
        """Time of a guess of so many tokens; 0 where it is a table lookup, which does not count beside a step."""

    def finish(self, view: View) -> None:
        """A generation has ended: nothing is kept for it alone any more."""


class Lookup(ABC):
    """A drafter that looks guesses up, each by itself."""

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [self._guess(view, most) for view in views]

    def seconds(self, length: int) -> float:
        return 0.0

    @abstractmethod
    def _guess(self, view: View, most: int) -> Guess: ...
