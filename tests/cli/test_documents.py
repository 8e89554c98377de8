"""What documents promise: command lines in them parse, links in them lead somewhere, the site leaves no page out."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import COMMANDS
from penstock.console import args

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "reference" not in page.parts]


def command_lines(page: Path) -> Iterator[str]:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(\.venv/bin/)?penstock ", line):
                yield line


def config_of(words: list[str]) -> tuple[Any, list[str]]:
    """The config of the command that a command line names, and the words left for it."""
    name = " ".join(words[:2])
    if name in COMMANDS:
        return import_module(COMMANDS[name].module).Config, words[2:]
    module = import_module(COMMANDS[words[0]].module)
    members = getattr(module, "MEMBERS", {})
    if len(words) > 1 and words[1] in members:
        return members[words[1]].Config, words[2:]
    return module.Config, words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_parses(page: Path) -> None:
    for line in command_lines(page):
        config, words = config_of(shlex.split(line, comments=True)[1:])
        arguments = args.parse(config, words)
        if not arguments.wants_help:
            args.build(config, arguments.values)


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target or path.startswith("reference/"):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_the_site_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"[\w/-]+\.md", navigation))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT}
    assert listed - {one for one in listed if one.startswith("reference/")} == pages


def test_what_contributors_are_sent_to_exists() -> None:
    """Every path in the recipes, and every name that is said to stand in a file, is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:penstock|tests|docs)/[\w/.]*)`", text)
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]
    named = re.findall(r"`([A-Z_]+)` of `(penstock/[\w/.]+\.py)`", text.replace("\n", " ").replace("   ", " "))
    assert len(named) >= 3
    assert not [name for name, path in named if not re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE)]


def test_decisions_are_read_in_ten_minutes() -> None:
    size = len((ROOT / "docs" / "DECISIONS.md").read_bytes())
    assert size <= 15_000, "what shapes one part goes to that part's page in docs/measurements/choices/"
