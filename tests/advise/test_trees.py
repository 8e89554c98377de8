"""Laws of advice: every leaf is reached by answers, ends in commands that the command line takes, and is plain data."""

import io
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from penstock.cli import serve
from penstock.cli.main import COMMANDS, main
from penstock.console.args import parse
from penstock.console.flags import flags_of
from penstock.errors import ConfigError
from penstock.tools.advise.trees import TREES, Advice, Question, walk

ROOT = Path(__file__).parents[2]


def leaves(place: Question | Advice) -> Iterator[Advice]:
    if isinstance(place, Advice):
        yield place
    else:
        for branch in place.branches:
            yield from leaves(branch.to)


def ways(place, so_far=()):
    """Every row of answers that ends in a leaf."""
    if isinstance(place, Advice):
        yield so_far, place
    else:
        for branch in place.branches:
            yield from ways(branch.to, (*so_far, (place.id, branch.key)))


LEAVES = [(tree.name, advice) for tree in TREES.values() for advice in leaves(tree.root)]


@pytest.mark.parametrize(("name", "advice"), LEAVES, ids=[f"{name}: {advice.title[:40]}" for name, advice in LEAVES])
def test_a_leaf_ends_in_commands_that_are_understood(name, advice):
    from importlib import import_module

    assert advice.reasons
    assert advice.commands
    for line in advice.commands:
        program, first, *rest = shlex.split(line)
        assert program == "penstock"
        double = f"{first} {rest[0]}" if rest else ""
        module = import_module(COMMANDS[double if double in COMMANDS else first].module)
        members = getattr(module, "MEMBERS", {})
        if double in COMMANDS or (rest and rest[0] in members):
            module, rest = members.get(rest[0], module), rest[1:]
        parse(module.Config, rest)


@pytest.mark.parametrize("tree", TREES.values(), ids=lambda tree: tree.name)
def test_answers_lead_to_every_leaf_by_place_and_by_name(tree):
    for answers, advice in ways(tree.root):
        assert walk(tree, [key for _, key in answers]).end is advice
        assert walk(tree, [f"{id}={key}" for id, key in reversed(answers)]).end is advice
        half = walk(tree, [key for _, key in answers[:-1]]).end
        assert isinstance(half, Question)
        assert half.id == answers[-1][0]


@pytest.mark.parametrize("tree", TREES.values(), ids=lambda tree: tree.name)
def test_a_tree_is_plain_data_and_no_question_has_two_branches_of_a_name(tree):
    assert json.loads(json.dumps(asdict(tree))) == asdict(tree)
    for answers, _ in ways(tree.root):
        assert len({id for id, _ in answers}) == len(answers)


def test_an_answer_that_is_none_is_an_error_that_names_the_others():
    with pytest.raises(ConfigError, match="yes, no"):
        walk(TREES["layout"], ["perhaps"])
    with pytest.raises(ConfigError, match="nothing asks"):
        walk(TREES["layer"], ["alone", "yes"])


def test_the_command_tells_the_next_question_or_the_advice(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["advise"]) == 0
    assert "layout" in capsys.readouterr().out
    assert main(["advise", "layout"]) == 0
    assert "--answers yes" in capsys.readouterr().out
    assert main(["advise", "layout", "--answers", "no,yes,no"]) == 0
    assert "Tensor parallel inside the machine" in capsys.readouterr().out
    assert main(["advise", "layout", "--answers", "fits=no,node=no", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["end"]["kind"] == "advice"
    assert data["path"] == [{"id": "fits", "answer": "no"}, {"id": "node", "answer": "no"}]
    assert main(["advise", "lay-out"]) == 2
    assert "did you mean layout" in capsys.readouterr().err


def test_a_person_is_asked(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("perhaps\n2\nyes\n2\n"))
    assert main(["advise", "layout"]) == 0
    shown = capsys.readouterr().out
    assert "takes yes, no, not 'perhaps'" in shown
    assert "Tensor parallel inside the machine" in shown


@pytest.mark.parametrize("page", ["checklist", "cheatsheet"])
def test_pages_are_for_people_and_for_machines(page, capsys):
    assert main(["advise", page]) == 0
    assert capsys.readouterr().out
    assert main(["advise", page, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_leaf_that_simulates_a_flag_of_the_server_names_the_server_too():
    served = {f"--{flag.switch}" for flag in flags_of(serve.Config)} - {"--model", "--max-context", "--prefix-caching"}
    for name, advice in LEAVES:
        simulated = {word for line in advice.commands if " simulate " in line for word in shlex.split(line)}
        real = [
            line for line in advice.commands if line.split()[1] in ("serve", "route", "up", "plan", "rank", "quantize")
        ]
        if (
            simulated
            & served
            & {"--kv", "--weights", "--tensor", "--replicas", "--speculate", "--max-waiting", "--pipeline"}
        ):
            assert real, (name, advice.title)


def test_the_glossary_is_one_for_command_page_and_documents(capsys):
    assert main(["advise", "glossary", "--json"]) == 0
    words = json.loads(capsys.readouterr().out)
    text = (ROOT / "docs" / "GLOSSARY.md").read_text()
    assert all(f"| {word} | {meaning} |" in text for word, meaning in words.items())
    assert "GLOSSARY.md" in (ROOT / "README.md").read_text()
