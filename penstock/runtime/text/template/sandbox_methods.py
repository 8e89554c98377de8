"""Methods of plain values that chat templates may call, each paying for its work before it does it.

Owns the table of what is allowed: what is not in it cannot be called.
"""

from typing import Any

from penstock.runtime.text.template.budget import Budget, characters_of
from penstock.runtime.text.template.sandbox_filters import replacement_size

_STR = frozenset(
    (
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "index", "join", "ljust"),
        *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title"),
        *("upper", "zfill", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
        *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
    )
)
_ALLOWED: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _STR),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (int, frozenset({"bit_length"})),
    (float, frozenset({"is_integer"})),
)

_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_BLANKS = " \t\n\r\v\f"


def is_allowed(owner: Any, name: str) -> bool:
    return any(isinstance(owner, kind) and name in names for kind, names in _ALLOWED)


def pay(budget: Budget, owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Pay in advance for calling the method; return the arguments to call it with."""
    if not isinstance(owner, str):
        if name in ("count", "index"):
            budget.value(owner)
        elif name == "copy":
            budget.step(len(owner))
        for argument in args:
            budget.value(argument)
        return args
    budget.text(owner)
    if name == "join" and args:
        parts = list(budget.items(args[0]))
        size = budget.value(parts)
        budget.write(size.characters + size.values * characters_of(owner))
        return (parts,)
    for argument in args:
        budget.value(argument)
    _pay_text(budget, owner, name, args)
    return args


def _pay_text(budget: Budget, text: str, name: str, args: tuple[Any, ...]) -> None:
    numbers = [argument for argument in args if isinstance(argument, int)]
    if name in ("ljust", "rjust", "center", "zfill"):
        budget.write(4 * max(numbers, default=0))
    elif name == "expandtabs":
        budget.write(4 * text.count("\t") * max(*numbers, 8, 8))
    elif name == "replace" and len(args) > 1 and all(isinstance(part, str) for part in args[:2]):
        budget.write(replacement_size(text, args[0], args[1]))
    elif name in ("split", "rsplit"):
        separators = [args[0]] if args and isinstance(args[0], str) and args[0] else _BLANKS
        budget.step(sum(map(text.count, separators)))
        budget.search(text, separators[0])
    elif name in ("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition") and args and isinstance(args[0], str):
        budget.search(text, args[0])
    elif name == "splitlines":
        budget.step(sum(map(text.count, _LINE_BREAKS)))
