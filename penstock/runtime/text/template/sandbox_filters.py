"""Filters and tests that chat templates may use, each paying for its work before it does it.

Owns the tables of what is allowed. A filter that is not listed does not exist for a template. Results are those of the
engine's own filters; only the accounting is added.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from penstock.runtime.text.template.budget import CONTAINERS, Budget, Size, TemplateLimitError, characters_of

CALL_STEPS = 4
"""A call costs about as much as this many nodes."""
MAX_COUNT = 1000
"""Largest number that says how much a filter shall add: an indentation, a width, a batch."""
MAX_DIGITS = 300
MAX_PATH = 16

Function = Callable[..., Any]
GetBudget = Callable[[], Budget]

# What is done to the value decides what it costs.
_CONSTANT = ("abs", "attr", "count", "d", "default", "first", "last", "length")
_TEXT = (
    *("capitalize", "e", "escape", "float", "format", "indent", "int", "lower", "replace", "round", "safe", "string"),
    *("title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount", "center"),
)
_WALK = ("batch", "items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice")
_DEEP = ("dictsort", "groupby", "join", "max", "min", "sort", "sum", "unique")

_COMPARING_TESTS = (
    *("in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan", "<=", "le"),
    *("lower", "upper"),
)
_COUNTS = ("batch", "center", "indent", "slice", "tojson")

# Which argument names what is looked at of each item.
_PATHS = {
    **dict.fromkeys(("selectattr", "rejectattr", "groupby", "sum"), 0),
    **dict.fromkeys(("join", "unique", "min", "max"), 1),
    "sort": 2,
}

# Widths and precisions of printf-style formats: `*` takes them from the arguments.
_PERCENT_WIDTH = re.compile(r"%[^%a-zA-Z]*?(\d{4,}|\*)")
_SPEC_WIDTH = re.compile(r"\d{4,}")


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: characters as they are, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def metered_filters(budget: GetBudget) -> dict[str, Function]:
    filters = {name: FILTERS[name] for name in (*_CONSTANT, *_TEXT, *_WALK, *_DEEP)} | {"tojson": tojson}
    return {name: _metered_filter(name, function, budget) for name, function in filters.items()}


def metered_tests(budget: GetBudget) -> dict[str, Function]:
    tests: dict[str, Any] = dict(TESTS)
    return {name: _metered_test(name, function, budget) for name, function in tests.items()}


def pay_percent_format(budget: Budget, text: str, values: Any) -> None:
    """Pay for `text % values`: any place in the text may show all of them."""
    if _PERCENT_WIDTH.search(text):
        raise TemplateLimitError("a format asks for a width above 999 or takes it from its arguments")
    budget.text(text)
    places = text.count("%")
    budget.step(places)
    budget.write(places * (16 + budget.value(values).characters))


def check_format_spec(spec: str) -> None:
    if _SPEC_WIDTH.search(spec):
        raise TemplateLimitError("a format asks for a width above 999")


def account(budget: Budget, result: Any) -> Any:
    """Pay for a result that was made; one that is still to be made pays as it goes."""
    if isinstance(result, str):
        budget.text(result)
    elif isinstance(result, CONTAINERS):
        budget.step(len(result))
    elif isinstance(result, Iterator):
        return budget.items(result, CALL_STEPS)
    return result


def replacement_size(text: str, old: str, new: str) -> int:
    """Most characters that `text` has once `old` has become `new`."""
    times = text.count(old) if old else len(text) + 1
    return characters_of(text) + times * characters_of(new)


def _metered_filter(name: str, function: Function, get_budget: GetBudget) -> Function:
    """`function` behind the accounting its kind needs. The engine may pass its own first argument before the value."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        budget = get_budget()
        budget.step(CALL_STEPS)
        if len(args) <= at or name in _CONSTANT:
            return function(*args, **kwargs)
        engine, (value, *rest) = args[:at], args[at:]
        if name in _WALK:
            value = _walked(budget, value)
            size = Size(1, 0, 0)
        else:
            value = _listed(budget, value) if name in _DEEP else value
            size = budget.value(value)
        _check_path(name, rest, kwargs)
        _check_arguments(budget, name, value, size, (*rest, *kwargs.values()))
        return account(budget, function(*engine, value, *rest, **kwargs))

    return metered


def _metered_test(name: str, function: Function, get_budget: GetBudget) -> Function:
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        budget = get_budget()
        budget.step(CALL_STEPS)
        if name in _COMPARING_TESTS:
            for value in (*args[at:], *kwargs.values()):
                budget.value(value)
        return function(*args, **kwargs)

    return metered


def _walked(budget: Budget, value: Any) -> Any:
    if isinstance(value, Iterator):
        return budget.items(value, CALL_STEPS)
    if hasattr(value, "__len__"):
        budget.step(CALL_STEPS * len(value))
    return value


def _listed(budget: Budget, value: Any) -> Any:
    """The value, paid for item by item: as a list where it is none of the kinds that can be measured."""
    if isinstance(value, Iterable) and not isinstance(value, (str, *CONTAINERS)):
        return list(budget.items(value, CALL_STEPS))
    return _walked(budget, value)


def _check_path(name: str, arguments: list[Any], named: dict[str, Any]) -> None:
    """A path such as "function.name" is walked for every item."""
    at = _PATHS.get(name, len(arguments))
    for path in (*arguments[at : at + 1], named.get("attribute")):
        if isinstance(path, str) and path.count(".") > MAX_PATH:
            raise TemplateLimitError(f"the filter {name} is given a path of more than {MAX_PATH} parts")


def _check_arguments(budget: Budget, name: str, value: Any, size: Size, arguments: Iterable[Any]) -> None:
    """Pay in advance for what the arguments make of the value."""
    arguments = tuple(arguments)
    for argument in arguments:
        budget.value(argument)
        if name in _COUNTS and isinstance(argument, int) and abs(argument) > MAX_COUNT:
            raise TemplateLimitError(f"the filter {name} is asked to add {argument}")
    texts = [argument for argument in arguments if isinstance(argument, str)]
    widest = max((characters_of(text) for text in texts), default=0)
    if name == "join":
        budget.write(size.values * widest + size.characters)
    elif name == "replace" and len(texts) > 1:
        budget.write(replacement_size(str(value), texts[0], texts[1]))
    elif name == "indent":
        lines = str(value).count("\n") + 1
        budget.write(lines * max(widest, *(a for a in arguments if isinstance(a, int)), 4))
    elif name == "tojson":
        budget.write(_json_size(size, arguments))
    elif name in ("e", "escape"):
        budget.write(5 * size.characters)
    elif name == "format":
        pay_percent_format(budget, str(value), arguments)
    elif name == "trim" and texts:
        budget.search(str(value), texts[0])
    elif name in ("title", "urlencode", "wordcount"):
        budget.step(size.characters // 4)
    elif name == "round" and any(isinstance(a, int) and abs(a) > MAX_DIGITS for a in arguments):
        raise TemplateLimitError(f"the filter round is asked for more than {MAX_DIGITS} digits")
    elif name in ("sort", "dictsort", "groupby", "unique"):
        budget.step(size.values * size.values.bit_length())
        budget.write(size.characters * size.values.bit_length())
    elif name == "sum" and not all(isinstance(a, int | float | str) for a in arguments):
        budget.step(size.values * size.values)


def _json_size(size: Size, arguments: Iterable[Any]) -> int:
    """Most characters of the JSON text: escapes, and layout for every value."""
    layout = 8
    for argument in arguments:
        if isinstance(argument, str | tuple | list):
            layout += sum(characters_of(str(part)) for part in argument) * size.depth
        elif isinstance(argument, int):
            layout += argument * size.depth
    return 3 * size.characters + size.values * layout
