"""The quizzes by area: questions as data, and those with numbers made in `quizzes_numbers`."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.advise import quizzes_numbers as numbers
from penstock.tools.advise.data import load
from penstock.tools.advise.quiz import QuizItem, QuizQuestion, fixed


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
