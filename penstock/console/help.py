"""Help texts: a command's flags laid out for a terminal of a given width.

Owns the layout; what a field says of itself is read by `fields`.
"""

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from penstock.console.flags import Flag, by_tables, flags_of
from penstock.fields import field_docstrings

INDENT = 28
MOST_WIDTH = 100
LEAST_WIDTH = INDENT + 32
COMMON_ROWS = (
    ("--config FILE", "Read settings from a TOML or JSON file; flags win over it, later files over earlier"),
    ("--print-config", "Print the settings in force as a config file, and end"),
    ("--no-NAME", "Clear what a config file set for the flag NAME, where it may be empty"),
    ("NAME=VALUE", "Set what the same line of a config file would: settings, and flags where no text is taken"),
    ("-- WORD", "Take WORD as it is, also where it looks like a flag or like NAME=VALUE"),
    ("--help", "Print this help, and end"),
)


def flag_help(flag: Flag, docstrings: Mapping[str, str]) -> str:
    """What a flag does and what it is by default. A field that does not say what it is for is a TypeError."""
    if not docstrings.get(flag.name):
        raise TypeError(f"{flag.owner.__qualname__}.{flag.name} has no docstring to make its help of")
    choices = f" ({flag.expected})" if flag.is_positional and flag.choices else ""
    repeated = " (may be given again)" if flag.is_many and not flag.is_positional else ""
    return docstrings[flag.name] + choices + repeated + _default_note(flag.default)


def command_help(program: str, config: type, width: int) -> str:
    """The whole help of a command: usage, description, then the flags grouped by the tables of a config file."""
    flags = flags_of(config)
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    positionals = [flag for flag in flags if flag.is_positional]
    lines = [" ".join(["usage:", program, "[flags]", *map(_place, positionals)])]
    for paragraph in (inspect.getdoc(config) or "").split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), width)]
    if positionals:
        lines.append("")
    for flag in positionals:
        lines += layout(flag.metavar, flag_help(flag, field_docstrings(flag.owner)), width)
    for tables, members in by_tables(flag for flag in flags if not (flag.is_positional or flag.role)).items():
        lines += ["", _heading(tables, members[0].owner), *_rows(members, width)]
    for role, heading in (("advanced", "advanced, which few need:"), ("setting", "settings, written without dashes:")):
        if members := [flag for flag in flags if flag.role == role]:
            lines += ["", heading, *_rows(members, width)]
    lines += ["", "for every command:"]
    for usage, text in COMMON_ROWS:
        lines += layout(usage, text, width)
    return "\n".join(lines)


def layout(usage: str, text: str, width: int, indent: int = INDENT) -> list[str]:
    """One row of help: what to write on the left, what it does on the right."""
    wrapped = textwrap.wrap(text, width - indent, break_on_hyphens=False)
    if len(usage) + 4 > indent:
        return [f"  {usage}", *(" " * indent + line for line in wrapped)]
    return [f"  {usage}".ljust(indent) + wrapped[0], *(" " * indent + line for line in wrapped[1:])]


def _rows(flags: Sequence[Flag], width: int) -> list[str]:
    return [
        line for flag in flags for line in layout(_usage(flag), flag_help(flag, field_docstrings(flag.owner)), width)
    ]


def _heading(tables: tuple[str, ...], owner: type) -> str:
    if not tables:
        return "flags:"
    first_line, *_ = (inspect.getdoc(owner) or "").splitlines()
    return f"[{'.'.join(tables)}] {first_line}"


def _usage(flag: Flag) -> str:
    if flag.is_setting:
        return f"{flag.key}={flag.metavar or 'true|false'}"
    if flag.kind is bool:
        return f"--{flag.switch} / --no-{flag.switch}"
    return f"--{flag.switch} {flag.metavar}"


def _place(flag: Flag) -> str:
    dots = "..." if flag.is_many else ""
    return f"{flag.metavar}{dots}" if flag.default is MISSING else f"[{flag.metavar}{dots}]"


def _default_note(default: Any) -> str:
    if default is MISSING:
        return " (required)"
    if default in (None, (), ""):
        return ""
    if isinstance(default, bool):
        return " (default: on)" if default else " (default: off)"
    text = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f" (default: {text if text.isprintable() else repr(text)})"
