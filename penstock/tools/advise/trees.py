"""Decision trees: questions with branches, and advice at the leaves that ends in a command. Values only; nobody asks here.

Where to look first, how to lay a model out, what to buy, what to tune and in which order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.tools.advise.data import load


@dataclass(frozen=True, slots=True)
class Advice:
    """A leaf: what to do, why, and the commands that do it or prove it."""

    kind: str = field(default="advice", init=False)
    title: str
    reasons: list[str]
    commands: list[str]


@dataclass(frozen=True, slots=True)
class Branch:
    key: str
    """What to answer: one word, the same for ever."""
    label: str
    to: "Question | Advice"


@dataclass(frozen=True, slots=True)
class Question:
    kind: str = field(default="question", init=False)
    id: str
    text: str
    branches: list[Branch]


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """As plain values (`asdict`) it is what pages draw."""

    name: str
    title: str
    root: Question | Advice


def _place(node: Mapping[str, Any]) -> Question | Advice:
    if "advice" in node:
        return Advice(node["advice"], node["because"], node["run"])
    branches = [Branch(key, one["label"], _place(one["to"])) for key, one in node["branches"].items()]
    return Question(node["ask"], node["text"], branches)


TREES: Mapping[str, DecisionTree] = {
    one["name"]: DecisionTree(one["name"], one["title"], _place(one["root"])) for one in load("trees")["trees"]
}


def find(name: str, pages: Iterable[str] = ()) -> DecisionTree:
    """`pages` are further names that the caller knows, and may have been meant."""
    if name in TREES:
        return TREES[name]
    known = [*TREES, *pages]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown tree {name!r}: {hint}choose one of {', '.join(known)}")


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
