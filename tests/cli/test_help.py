"""Laws of help: every field says what it is for, every flag is there, no line is wider than asked."""

from dataclasses import dataclass, field

import pytest

from penstock.config import EngineConfig
from penstock.console.flags import flags_of
from penstock.console.help import command_help, flag_help
from penstock.fields import field_docstrings
from tests.cli.orchard import Config
from tests.cli.test_flags import ALL_CONFIGS


def name_of(config: type) -> str:
    return f"{config.__module__}.{config.__name__}"


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=name_of)
def test_every_field_and_every_config_says_what_it_is_for(config: type) -> None:
    for flag in flags_of(config):
        assert flag_help(flag, field_docstrings(flag.owner))
        assert flag.owner.__doc__
        assert not flag.owner.__doc__.startswith(f"{flag.owner.__name__}("), "the docstring is one a dataclass made up"


@pytest.mark.parametrize("width", [10, 80, 500])
@pytest.mark.parametrize("config", ALL_CONFIGS, ids=name_of)
def test_every_flag_appears_in_the_help_of_any_width(config: type, width: int) -> None:
    lines = command_help("penstock try", config, width).splitlines()
    firsts = {line.split()[0] for line in lines if line.startswith("  ") and line.split()}
    firsts |= {first.partition("=")[0] for first in firsts}
    assert {flag.label for flag in flags_of(config)} <= firsts
    assert {"--config", "--print-config", "--help"} <= firsts


def test_help_names_every_way_to_name_a_model() -> None:
    text = " ".join(command_help("penstock serve", EngineConfig, 80).split())
    assert all(way in text for way in ("a path", "hf:ORG/NAME", "pypi:PACKAGE", "dummy:NAME", "`default`"))


def test_help_keeps_to_the_width_where_words_allow() -> None:
    assert max(map(len, command_help("penstock try", EngineConfig, 80).splitlines())) <= 80


@pytest.mark.parametrize(
    "fact",
    [
        "usage: penstock orchard [flags] PICKER [BASKETS...]",
        "Count apples in an orchard.\n\nTrees are counted one by one.",
        "  PICKER                    Who picks (required)",
        "  --apples N                Apples on a tree (default: 12)",
        "  --month august|september  When to pick\n",
        "  --book FILE               Where",
        "  --json / --no-json        Print JSON for machines (default: off)",
        "  --pruned / --no-pruned    Cut back in winter (default: on)",
        "  --height-m X              Height in metres (default: 3.0)",
        "  --weights X               Weights of the pickers' bags (may be given again) (default: 1.5, 2.0)",
        "  --years N                 Age in years (default: nobody knows)\n",
        "\n[garden.tree] One tree of the orchard.\n  --kind pippin|russet|codlin\n",
        r"(default: 'first line\nsecond line')",
    ],
)
def test_facts_of_the_help(fact: str) -> None:
    assert fact in command_help("penstock orchard", Config, 100)


def test_a_field_without_a_docstring_is_an_error() -> None:
    @dataclass(frozen=True)
    class Silent:
        """Says nothing of its field."""

        value: int = 0

    with pytest.raises(TypeError, match=r"Silent\.value has no docstring"):
        command_help("penstock silent", Silent, 80)


def test_inherited_fields_keep_their_docstrings_and_may_change_them() -> None:
    @dataclass(frozen=True)
    class Parent:
        """Above."""

        kept: int = 0
        """Kept as it was"""
        changed: int = field(default=0)
        """Before"""

    @dataclass(frozen=True)
    class Child(Parent):
        """Below."""

        changed: int = 1
        """After"""

    assert field_docstrings(Child) == {"kept": "Kept as it was", "changed": "After"}
