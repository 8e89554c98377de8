"""How large a grammar may be, so that compiling it and following it stay quick whatever a client sends.

Everything here is counted on the source, before the grammar engine sees it, in time proportional to the source.
"""

import json
import re
from typing import Any

from penstock.errors import RequestError

MAX_SOURCE_CHARACTERS = 1 << 18
MAX_NESTING = 64
"""Schemas within schemas, groups within groups."""
MAX_ALTERNATIVES = 10_000
"""Members of all enumerations and unions together."""
MAX_PROPERTIES = 1_000
"""Properties of one object: each optional one multiplies the possible continuations."""
MAX_REPEATED = 100_000
"""Copies of the innermost part that nested counted repeats of an expression expand to."""

_UNIONS = ("enum", "anyOf", "oneOf", "allOf", "prefixItems")
_PROPERTIES = ("properties", "patternProperties")
_COUNT = re.compile(r"\{(\d{1,9})(?:(,)(\d{0,9}))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)


def check_length(source: str) -> None:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise too_large(f"it has {len(source):,} characters, of at most {MAX_SOURCE_CHARACTERS:,}")


def parse_schema(source: str) -> Any:
    """The value a JSON text stands for, if no part of it is larger than a schema may be."""
    check_length(source)
    if depth_of(source) > 2 * MAX_NESTING:
        raise too_large(f"it is nested deeper than {MAX_NESTING} levels")
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise RequestError(f"the schema is not JSON: {error}", code="invalid_json_schema") from error
    _check_schema(schema)
    return schema


def depth_of(source: str) -> int:
    """How deep brackets are nested in a JSON text, those in strings aside."""
    depth = deepest = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', source, re.DOTALL):
        text = mark[0]
        if text in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif text in "]}":
            depth -= 1
    return deepest


def _check_schema(schema: Any) -> None:
    num_alternatives = 0
    todo: list[tuple[Any, int]] = [(schema, 0)]
    while todo:
        part, depth = todo.pop()
        if depth > 2 * MAX_NESTING:
            raise too_large(f"it is nested deeper than {MAX_NESTING} levels")
        if isinstance(part, dict):
            for key in _UNIONS:
                members = part.get(key)
                num_alternatives += len(members) if isinstance(members, list) else 0
            for key in _PROPERTIES:
                members = part.get(key)
                if isinstance(members, dict) and len(members) > MAX_PROPERTIES:
                    raise too_large(f"an object has {len(members):,} properties, of at most {MAX_PROPERTIES:,}")
            todo.extend((value, depth + 1) for value in part.values())
        elif isinstance(part, list):
            todo.extend((value, depth + 1) for value in part)
    if num_alternatives > MAX_ALTERNATIVES:
        raise too_large(
            f"its enumerations and unions have {num_alternatives:,} members, of at most {MAX_ALTERNATIVES:,}"
        )


def check_choices(choices: Any) -> None:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("the choices must be a list of texts, one at least")
    if len(choices) > MAX_ALTERNATIVES:
        raise too_large(f"it has {len(choices):,} choices, of at most {MAX_ALTERNATIVES:,}")


def check_expression(expression: str) -> None:
    """Refuse nested counted repeats that expand to too many copies, and groups nested too deep."""
    check_length(expression)
    plain = _CLASS.sub("x", re.sub(r"\\.", "x", expression, flags=re.DOTALL))
    sizes: list[list[int]] = [[0, 0]]
    """For each open group: the size of its parts so far, and of the last part."""
    position = 0
    while position < len(plain):
        character = plain[position]
        count = _COUNT.match(plain, position) if character == "{" else None
        group = sizes[-1]
        if character == "(":
            if len(sizes) > MAX_NESTING:
                raise too_large(f"its groups are nested deeper than {MAX_NESTING} levels")
            sizes.append([0, 0])
        elif character == ")" and len(sizes) > 1:
            inner = sizes.pop()[0]
            group = sizes[-1]
            group[0] += inner
            group[1] = inner
        elif count is not None:
            times = int(count[3] or count[1]) if count[2] else int(count[1])
            group[0] += group[1] * (max(times, 1) - 1)
            group[1] *= max(times, 1)
        elif character not in "*+?|":
            group[0] += 1
            group[1] = 1
        if sizes[-1][0] > MAX_REPEATED:
            raise too_large(f"its counted repeats stand for more than {MAX_REPEATED:,} copies")
        position = position + 1 if count is None else count.end()


def too_large(why: str) -> RequestError:
    return RequestError(f"the grammar is too large: {why}; make it smaller", code="grammar_too_large")
