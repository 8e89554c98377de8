"""How configs declare their fields: what each may be, how a command line calls it, and the docstring under it.

Knows no command line. A setting is a field that hardly anybody needs: no `--NAME`, only `NAME=VALUE`. An advanced one has its
flag, which help shows after the others.
"""

import ast
import inspect
import sys
from dataclasses import Field, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from penstock.errors import ConfigError

T = TypeVar("T")


class Bounds(NamedTuple):
    """Numbers that a field may be: from `least`, or above `above`, to `most`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    unit: str = ""

    def allows(self, value: object, *, is_whole: bool) -> bool:
        if not isinstance(value, int if is_whole else int | float) or isinstance(value, bool):
            return False
        is_high_enough = self.above is None or value > self.above if self.least is None else value >= self.least
        return is_high_enough and value <= (sys.float_info.max if self.most is None else self.most)

    def in_words(self, *, is_whole: bool) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.least is not None and self.most is not None:
            return f"{_figure(self.least)} to {_figure(self.most)}{unit}"
        if self.least is not None:
            return f"{'a whole number, ' if is_whole else ''}{_figure(self.least)} or more{unit}"
        most = "" if self.most is None else f", at most {_figure(self.most)}"
        return f"more than {_figure(self.above or 0)}{unit}{most}"


def leaf(
    default: T,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    unit: str = "",
    role: Literal["", "setting", "advanced"] = "",
) -> T:
    """A field with this default, and with bounds where some are given; `check` holds a config to them."""
    bounds = None if (least, most, above) == (None, None, None) else Bounds(least, most, above, unit)
    declared: T = field(default=default, metadata={"role": role, "bounds": bounds})
    return declared


def setting(default: T, least: float | None = None, most: float | None = None, **more: Any) -> T:
    return leaf(default, least, most, role="setting", **more)


def advanced(default: T, least: float | None = None, most: float | None = None, **more: Any) -> T:
    return leaf(default, least, most, role="advanced", **more)


def check(config: Any) -> None:
    """Raise ConfigError for the first field that is none of its choices, or out of its bounds."""
    for declared in fields(config):
        value, hint = getattr(config, declared.name), declared.type
        if value is None and declared.default is None:
            continue
        bounds: Bounds | None = declared.metadata.get("bounds")
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ConfigError(f"{label_of(declared)} is {value}; choose one of {', '.join(map(str, get_args(hint)))}")
        is_whole = float not in (hint, *get_args(hint))
        if bounds is not None and not bounds.allows(value, is_whole=is_whole):
            raise ConfigError(f"{label_of(declared)} is {value}; choose {bounds.in_words(is_whole=is_whole)}")


class Checked:
    """A config that is checked when it is made, and by nothing but its declarations."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def label_of(declared: "Field[Any]") -> str:
    """A field as a command line calls it: settings have no dashes."""
    name = declared.metadata.get("flag") or declared.name.replace("_", "-")
    return name if declared.metadata.get("role") == "setting" else f"--{name}"


def _figure(number: float) -> str:
    return f"{number:,.10g}"


@cache  # the class is searched for in the text of its whole module
def field_docstrings(owner: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, those it inherits included, each on one line."""
    found: dict[str, str] = {}
    for base in reversed([base for base in owner.__mro__ if is_dataclass(base)]):
        source = inspect.getsource(base)
        # A class made inside a function is indented, and only an enclosing statement makes that a program.
        tree = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)
        declaration = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        for statement, text in pairwise(declaration.body):
            match statement, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    found[name] = " ".join(docstring.split())
    return found
