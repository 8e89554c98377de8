"""A quiz: questions with one right answer and a reason for each, numbers drawn anew and answers worked out, never typed in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

Wrong = tuple[str, str]
"""An answer, and why it is wrong."""


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
    """A question before its numbers are drawn."""

    id: str
    area: str
    make: Callable[[Random], tuple[str, str, str, Sequence[Wrong]]]
    """Text, right answer, why it is right, and the wrong ones."""

    def question(self, seed: int) -> QuizQuestion:
        """The same seed gives the same numbers and the same order."""
        rng = Random(f"{self.id}:{seed}")
        text, right, reason, wrongs = self.make(rng)
        options = [
            QuizOption(right, True, reason),
            *(QuizOption(each, False, why) for each, why in _others(right, wrongs)),
        ]
        rng.shuffle(options)
        return QuizQuestion(self.id, self.area, text, tuple(options))


def fixed(area: str, id: str, text: str, right: str, reason: str, *wrongs: Wrong) -> QuizItem:
    return QuizItem(id, area, lambda _: (text, right, reason, wrongs))


def _others(right: str, wrongs: Sequence[Wrong]) -> Iterator[Wrong]:
    """Without those that the numbers drawn made equal to the right one or to each other."""
    seen = {right}
    for text, reason in wrongs:
        if text not in seen:
            seen.add(text)
            yield text, reason


def question_data(question: QuizQuestion) -> dict[str, Any]:
    return asdict(question)
