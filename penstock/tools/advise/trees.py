"""The decision trees by name: where to look first, how to lay a model out, what to buy, what to tune and in which order."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.advise.data import load
from penstock.tools.advise.tree import Advice, Branch, DecisionTree, Question


def _place(node: Mapping[str, Any]) -> Question | Advice:
    if "advice" in node:
        return Advice(node["advice"], tuple(node["because"]), tuple(node["run"]))
    branches = (Branch(key, one["label"], _place(one["to"])) for key, one in node["branches"].items())
    return Question(node["ask"], node["text"], tuple(branches))


def _tree(data: Mapping[str, Any]) -> DecisionTree:
    root = _place(data["root"])
    if not isinstance(root, Question):
        raise ValueError(f"the tree {data['name']} asks nothing")
    return DecisionTree(data["name"], data["title"], root)


TREES: Mapping[str, DecisionTree] = {one["name"]: _tree(one) for one in load("trees")["trees"]}


def find(name: str, pages: Iterable[str] = ()) -> DecisionTree:
    """`pages` are further names that the caller knows, and may have been meant."""
    if name in TREES:
        return TREES[name]
    known = [*TREES, *pages]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown tree {name!r}: {hint}choose one of {', '.join(known)}")
