"""`penstock advise [TREE]`: walks a decision tree by questions on a terminal, or by answers on the command line.

Also prints the checklists and the cheat sheet. What there is to say lies in `penstock.tools.advise`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.tools.advise import trees
from penstock.tools.advise.data import load
from penstock.tools.advise.trees import Advice, Question, Walk, walk


@dataclass(frozen=True, slots=True)
class Config:
    """Walk a decision tree; every leaf ends in a command.

    Without a name the trees are listed. `checklist`, `cheatsheet` and `glossary` print those.
    """

    tree: str = field(default="", metadata={"positional": True})
    """layer, layout, precision, tuning, scaling, new-model, volume, host, bill, engine, format, topology, procurement, regions,
    hidden-costs; checklist, cheatsheet or glossary"""
    answers: str = ""
    """Answers in order, with commas between (no,yes), or by question (fits=no,node=yes)"""
    json: bool = False
    """Print JSON for machines: the tree, and where the answers lead"""


def run(config: Config) -> int:
    if page := PAGES.get(config.tree):
        show = print_json if config.json else page.show
        show(load(page.data))
        return 0
    if not config.tree:
        return _list(config)
    tree = trees.find(config.tree, PAGES)
    answers = [answer.strip() for answer in config.answers.split(",") if answer.strip()]
    found = walk(tree, answers)
    if config.json:
        path = [{"id": question.id, "answer": branch.key} for question, branch in found.path]
        print_json(asdict(tree) | {"path": path, "end": asdict(found.end)})
        return 0
    if isinstance(found.end, Question) and sys.stdin is not None and sys.stdin.isatty():
        print(f"{tree.title}\n")
        found = _ask(config.tree, answers, found)
    _print_end(config.tree, answers, found)
    return 0


def _ask(name: str, answers: list[str], found: Walk) -> Walk:
    while isinstance(found.end, Question):
        question = found.end
        print(question.text)
        for number, branch in enumerate(question.branches, 1):
            print(f"  {number}  {branch.label} ({branch.key})")
        try:
            said = input("> ").strip()
        except EOFError:
            return found
        key = question.branches[int(said) - 1].key if said in map(str, range(1, len(question.branches) + 1)) else said
        try:
            found = walk(trees.find(name), [*answers, f"{question.id}={key}"])
            answers.append(f"{question.id}={key}")
        except ConfigError as error:
            print(f"{error}\n")
    return found


def _print_end(name: str, answers: list[str], found: Walk) -> None:
    end = found.end
    if isinstance(end, Advice):
        print(f"{end.title}\n")
        for reason in end.reasons:
            print(f"  {reason}")
        print()
        for command in end.commands:
            print(f"    {command}")
        return
    print(f"{end.text}\n")
    rows = []
    for branch in end.branches:
        further = ",".join([*answers, branch.key])
        rows.append((f"penstock advise {name} --answers {further}", branch.label))
    print_table(("", ""), rows)


def _list(config: Config) -> int:
    if config.json:
        print_json([asdict(tree) for tree in trees.TREES.values()])
        return 0
    titles = {name: tree.title for name, tree in trees.TREES.items()}
    print_table(("", ""), [*titles.items(), *((name, page.about) for name, page in PAGES.items())])
    return 0


def _print_checklists(lists: Mapping[str, list[dict[str, str]]]) -> None:
    for name, items in lists.items():
        print_table((name, "evidence", "remedy"), [(item["text"], item["evidence"], item["remedy"]) for item in items])
        print()


def _print_cheatsheet(sheet: Mapping[str, list[dict[str, str]]]) -> None:
    print_table(("symptom", "technique", "layer", "parameter"), [list(one.values()) for one in sheet["remedies"]])
    print()
    print_table(("layer", "", "typical fault", "look at"), [list(one.values()) for one in sheet["layers"]])
    print()
    for number, step in enumerate(sheet["loop"], 1):
        print(f"{number}. {step['title']}: {step['text']}")


def _print_glossary(words: Mapping[str, str]) -> None:
    print_table(("word", "means"), list(words.items()))


class AdvicePage(NamedTuple):
    data: str
    """Its name among the files of `advise.data`."""
    about: str
    show: Callable[[Any], None]


PAGES: Mapping[str, AdvicePage] = {
    "checklist": AdvicePage(
        "checklists", "What must hold before production, and before a load test counts", _print_checklists
    ),
    "cheatsheet": AdvicePage("cheatsheet", "Symptoms and their technique, layers and their faults", _print_cheatsheet),
    "glossary": AdvicePage("glossary", "Words of the field", _print_glossary),
}
