"""A config's leaves as flags: each leaf field of a frozen dataclass, nested ones included, is one flag, or one setting.

A setting is a leaf that hardly anybody needs: no `--NAME`, only `NAME=VALUE` on a command line, and its line in a config file.
Owns the way from annotations to flags and the check of one value. Knows no command line, no file and no screen.
A number is written out in full (4096, 4_096): `4k` is refused, since it means 4000 to some and 4096 to others.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError

RESERVED = ("help", "config", "print_config")
EXPECTED = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", Path: "a path"}
METAVARS = {str: "TEXT", int: "N", float: "X", bool: "", Path: "PATH"}
AMBIGUOUS_NUMBER = re.compile(r"[\d.]+\s*[kmgt]i?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One leaf field of a config: how it is named, what it takes, its default.

    `is_many` collects values into a tuple; `is_optional` allows None, which then is the default.
    """

    name: str
    owner: type
    """The dataclass that declares the field."""
    tables: tuple[str, ...]
    """The fields that lead from the whole config to the owner."""
    kind: type
    choices: tuple[str | int, ...]
    default: Any
    """`MISSING` where the field must be given."""
    is_many: bool
    is_optional: bool
    is_positional: bool
    is_free_text: bool
    """Any words at all: of those with a `=`, only the settings' are not its."""
    metavar: str
    word: str = ""
    """How a command line calls it, where that is not how a file does: one item of what the field holds many of."""
    role: str = ""
    """Few people need a `setting` or an `advanced` one; help shows it after the others."""

    @property
    def key(self) -> str:
        """How a config file calls it."""
        return self.name.replace("_", "-")

    @property
    def switch(self) -> str:
        """How a command line calls it, without its dashes."""
        return self.word or self.key

    @property
    def is_setting(self) -> bool:
        return self.role == "setting"

    @property
    def label(self) -> str:
        if self.is_setting:
            return self.key
        return self.metavar if self.is_positional else f"--{self.switch}"

    @property
    def expected(self) -> str:
        return listed([str(choice) for choice in self.choices]) if self.choices else EXPECTED[self.kind]

    @property
    def empty(self) -> Any:
        """What `--no-NAME` sets; `MISSING` where the field cannot be empty."""
        if self.is_many:
            return ()
        return False if self.kind is bool else None if self.is_optional else MISSING

    def value_in(self, config: Any) -> Any:
        return getattr(reduce(getattr, self.tables, config), self.name)

    def from_text(self, text: str) -> Any:
        """One value as a shell hands it over."""
        data: Any = text
        if self.choices:
            data = next((choice for choice in self.choices if str(choice) == text), text)
        elif self.kind is bool:
            data = {"true": True, "false": False}.get(text, text)
        elif self.kind in (int, float):
            try:
                data = self.kind(text)
            except ValueError:
                data = text
        return self._checked(data, self.label)

    def from_data(self, data: Any, label: str) -> Any:
        """The whole value as a config file holds it; `label` is its name in error messages."""
        if data is None and self.is_optional:
            return None
        if not self.is_many:
            return self._checked(data, label)
        if not isinstance(data, list):
            raise ConfigError(f"{label} takes a list, each item {self.expected}, not {data!r}")
        return tuple(self._checked(item, label) for item in data)

    def _checked(self, data: Any, label: str) -> Any:
        """`data` as one value of this flag's kind, or an error that names what is accepted."""
        if self.choices:
            if any(type(data) is type(choice) and data == choice for choice in self.choices):
                return data
            hint = suggestion(str(data), map(str, self.choices))
            raise ConfigError(f"{label} takes {self.expected}, not {data!r}{hint}")
        if self.kind is float and type(data) in (int, float) and abs(data) <= sys.float_info.max:
            return float(data)
        if self.kind in (int, bool) and type(data) is self.kind:
            return data
        if self.kind in (str, Path) and type(data) is str:
            if any(
                "\ud800" <= character <= "\udfff" for character in data
            ):  # bytes that are no text arrive as surrogates
                raise ConfigError(f"{label} takes {self.expected} in UTF-8, not {data!r}")
            return self.kind(data)
        hint = ""
        if self.kind is int and AMBIGUOUS_NUMBER.fullmatch(str(data)):
            hint = "; write it out, since k may mean 1000 or 1024"
        raise ConfigError(f"{label} takes {self.expected}, not {data!r}{hint}")


def flags_of(config: type) -> tuple[Flag, ...]:
    """The leaves of a config in the order they are declared. A config that cannot be a command line is a TypeError."""
    flags = tuple(_leaves(config, MISSING, ()))
    for index, flag in enumerate(flags):
        fault = _fault(flag, flags[index + 1 :])
        if fault:
            raise TypeError(f"{flag.owner.__qualname__}.{flag.name}: {fault}")
    return flags


def by_tables(flags: Iterable[Flag]) -> dict[tuple[str, ...], list[Flag]]:
    """Flags gathered under the tables that hold them, those of the outermost config first."""
    gathered: dict[tuple[str, ...], list[Flag]] = {(): []}
    for flag in flags:
        gathered.setdefault(flag.tables, []).append(flag)
    return {tables: members for tables, members in gathered.items() if members}


def default_of(declared: "Field[Any]", base: Any) -> Any:
    """A field's value in `base`, or its declared default, or `MISSING`."""
    if base is not MISSING:
        return getattr(base, declared.name)
    if callable(declared.default_factory):
        return declared.default_factory()
    return declared.default


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known is close to the name, else nothing."""
    from difflib import get_close_matches  # only a mistake pays for it

    bare = {other.lstrip("-"): other for other in known}  # dashes that all share would make strangers look alike
    nearest = get_close_matches(name.lstrip("-"), bare, n=1)
    return f"; did you mean {bare[nearest[0]]}?" if nearest else ""


def listed(names: Sequence[str], joiner: str = "or") -> str:
    return f" {joiner} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _leaves(config: type, base: Any, tables: tuple[str, ...]) -> Iterator[Flag]:
    hints = get_type_hints(config)
    for declared in fields(config):
        default = default_of(declared, base)
        hint = hints[declared.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _leaves(hint, default, (*tables, declared.name))
        elif declared.init:
            is_positional = bool(declared.metadata.get("positional", False))
            kind, choices, is_many, is_optional = _shape(hint)
            metavar = declared.name.upper() if is_positional else "|".join(map(str, choices)) or METAVARS.get(kind, "")
            yield Flag(
                name=declared.name,
                owner=config,
                tables=tables,
                kind=kind,
                choices=choices,
                default=default,
                is_many=is_many,
                is_optional=is_optional,
                is_positional=is_positional,
                is_free_text=bool(declared.metadata.get("free_text", False)),
                metavar=declared.metadata.get("metavar", metavar),
                word=declared.metadata.get("flag", ""),
                role=declared.metadata.get("role", ""),
            )


def _shape(hint: Any) -> tuple[type, tuple[str | int, ...], bool, bool]:
    """Kind, choices, whether many, whether optional; a hint with no such shape comes back as its own kind."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        kind, choices, is_many, _ = _shape(next(part for part in arguments if part is not NoneType))
        return kind, choices, is_many, True
    if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        kind, choices, _, is_optional = _shape(arguments[0])
        return kind, choices, True, is_optional
    if get_origin(hint) is Literal:
        kinds = {type(choice) for choice in arguments}
        return kinds.pop() if len(kinds) == 1 else hint, arguments, False, False
    return hint, (), False, False


def _fault(flag: Flag, later: Sequence[Flag]) -> str:
    """What keeps a field from being a flag that files and command lines can express, or nothing."""
    if flag.kind not in EXPECTED or (flag.is_many and (flag.is_optional or flag.kind is bool)):
        return "only text, numbers, paths, choices, switches and tuples of these can be flags"
    if flag.name in RESERVED or flag.name.startswith("no_"):
        return "the name is taken by a flag every command has"
    if any(other.name == flag.name for other in later):
        return "another field has the same name, and so the same flag"
    if flag.is_optional and (flag.kind is bool or flag.default is not None):
        return "a field that may be None must default to None, and a switch is never None"
    if flag.is_positional and flag.kind is bool:
        return "a switch has no position"
    if flag.is_positional and flag.is_many and flag.default not in (MISSING, ()):
        return "positional values cannot be cleared, so they default to none"
    if flag.is_positional and flag.default is not MISSING and any(other.is_positional for other in later):
        return "only the last positional may be left out"
    return ""
