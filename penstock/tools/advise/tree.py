"""A decision tree: questions with branches, and advice at the leaves that ends in a command. Values only; nobody asks here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Advice:
    """A leaf: what to do, why, and the commands that do it or prove it."""

    title: str
    reasons: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    key: str
    """What to answer: one word, the same for ever."""
    label: str
    to: "Question | Advice"


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    text: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class DecisionTree:
    name: str
    title: str
    root: Question


class Walk(NamedTuple):
    """How far answers lead: the questions answered, and where that ends."""

    path: tuple[tuple[Question, Branch], ...]
    end: Question | Advice
    """The next question, or the advice."""


def walk(tree: DecisionTree, answers: Sequence[str]) -> Walk:
    """Answers are keys of branches in order, or `id=key` in any order. One that fits nowhere is an error."""
    named = dict(answer.split("=", 1) for answer in answers if "=" in answer)
    plain = iter([answer for answer in answers if "=" not in answer])
    path: list[tuple[Question, Branch]] = []
    place: Question | Advice = tree.root
    while isinstance(place, Question):
        key = named.pop(place.id, None) or next(plain, None)
        if key is None:
            break
        branch = _chosen(place, key)
        path.append((place, branch))
        place = branch.to
    left = [*named, *plain]
    if left:
        raise ConfigError(f"{tree.name}: nothing asks for {', '.join(left)} on this way; leave it out")
    return Walk(tuple(path), place)


def _chosen(question: Question, key: str) -> Branch:
    for branch in question.branches:
        if branch.key == key.strip().lower():
            return branch
    known = ", ".join(branch.key for branch in question.branches)
    raise ConfigError(f"{question.text} takes {known}, not {key!r}")


def leaves(place: Question | Advice) -> Iterator[Advice]:
    if isinstance(place, Advice):
        yield place
    else:
        for branch in place.branches:
            yield from leaves(branch.to)


def tree_data(tree: DecisionTree) -> dict[str, Any]:
    return {"name": tree.name, "title": tree.title, "root": place_data(tree.root)}


def place_data(place: Question | Advice) -> dict[str, Any]:
    """A question with its branches, all the way down, or a leaf."""
    if isinstance(place, Advice):
        return {
            "kind": "advice",
            "title": place.title,
            "reasons": list(place.reasons),
            "commands": list(place.commands),
        }
    branches = [{"key": one.key, "label": one.label, "to": place_data(one.to)} for one in place.branches]
    return {"kind": "question", "id": place.id, "text": place.text, "branches": branches}
