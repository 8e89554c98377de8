"""Quizzes: questions with one right answer and a reason for each, numbers drawn anew and answers worked out, never typed in.

Questions are data; those with numbers are made in `quizzes_numbers`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.advise import quizzes_numbers as numbers
from penstock.tools.advise.data import load
from penstock.tools.advise.quizzes_numbers import Made, Wrong


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
    make: Callable[[Random], Made]
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


def _item(data: Mapping[str, Any]) -> QuizItem:
    if "made" in data:
        return QuizItem(data["id"], data["area"], getattr(numbers, data["made"]))
    wrongs = ((text, reason) for text, reason in data["wrong"])
    return fixed(data["area"], data["id"], data["text"], data["right"], data["because"], *wrongs)


_ITEMS = tuple(_item(one) for one in load("quizzes"))
ITEMS: Mapping[str, QuizItem] = {item.id: item for item in _ITEMS}
AREAS: tuple[str, ...] = tuple(dict.fromkeys(item.area for item in _ITEMS))


def questions(area: str, seed: int = 0) -> list[QuizQuestion]:
    if area not in AREAS:
        raise ConfigError(f"unknown area {area!r}: choose one of {', '.join(AREAS)}")
    return [item.question(seed) for item in _ITEMS if item.area == area]
