"""Quizzes: questions with one right answer and a reason for each, numbers drawn anew and answers worked out, never typed in.

Questions are data; the numbers of some are drawn by `quizzes_numbers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from penstock.errors import ConfigError
from penstock.tools.advise import quizzes_numbers
from penstock.tools.advise.data import load


@dataclass(frozen=True, slots=True)
class QuizOption:
    text: str
    is_right: bool
    reason: str


@dataclass(frozen=True, slots=True)
class QuizQuestion:
    id: str
    area: str
    text: str
    options: tuple[QuizOption, ...]


@dataclass(frozen=True, slots=True)
class QuizItem:
    """A question before its numbers are drawn; its words may name them in braces."""

    id: str
    area: str
    text: str
    right: str
    because: str
    wrong: Sequence[tuple[str, str]]
    """Answers, and why each is wrong."""
    numbers: str = ""
    """Which of `quizzes_numbers` draws them; none where there are none to draw."""

    def question(self, seed: int) -> QuizQuestion:
        """The same seed gives the same numbers and the same order."""
        rng = Random(f"{self.id}:{seed}")
        numbers = getattr(quizzes_numbers, self.numbers)(rng) if self.numbers else {}
        options = [QuizOption(self.right.format(**numbers), True, self.because.format(**numbers))]
        for answer, why in self.wrong:
            text = answer.format(**numbers)
            # The numbers drawn may have made it equal to the right one or to another.
            if all(text != option.text for option in options):
                options.append(QuizOption(text, False, why))
        rng.shuffle(options)
        return QuizQuestion(self.id, self.area, self.text.format(**numbers), tuple(options))


_ITEMS = tuple(QuizItem(**one) for one in load("quizzes"))
ITEMS: Mapping[str, QuizItem] = {item.id: item for item in _ITEMS}
AREAS: tuple[str, ...] = tuple(dict.fromkeys(item.area for item in _ITEMS))


def questions(area: str, seed: int = 0) -> list[QuizQuestion]:
    if area not in AREAS:
        raise ConfigError(f"unknown area {area!r}: choose one of {', '.join(AREAS)}")
    return [item.question(seed) for item in _ITEMS if item.area == area]
