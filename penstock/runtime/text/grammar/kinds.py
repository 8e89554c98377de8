"""Kinds of constraints on an answer, one row each, and how each is written for the grammar engine.

Owns the translation of a source into the engine's own text. Nothing here knows a tokenizer: what is wrong with a source is
found without one.
"""

import json
from collections.abc import Callable
from typing import Any

from penstock.errors import RequestError
from penstock.runtime.text.grammar.limits import (
    MAX_NESTING,
    MAX_SOURCE_CHARACTERS,
    check_choices,
    check_expression,
    check_length,
    depth_of,
    parse_schema,
    too_large,
)
from penstock.runtime.text.tokenizer.tokenizer import check_unicode

WHITESPACE = r"( |\n[ \t]{0,20})?"
"""Whitespace between the tokens of JSON. Bounded, so that a weak model cannot generate blanks for ever."""

_OPTIONS: dict[str, Any] = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True}


def schema_text(schema: Any, *, lenient: bool = False) -> str:
    """A schema as JSON text with our options in it; `lenient` ignores keywords that are not supported."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise RequestError("the schema must be an object", code="invalid_json_schema")
    return json.dumps({**schema, "x-guidance": {**_OPTIONS, "lenient": lenient}})


def _json(schema: Any, *, lenient: bool = False) -> str:
    return f"start: %json {schema_text(schema, lenient=lenient)}"


def _regex(source: str) -> str:
    from llguidance import regex_to_lark  # who writes no grammar needs no compiler of them

    check_expression(source)
    return f"start: /{regex_to_lark(source, use_ascii='')}/" if source else 'start: ""'


def _choice(source: str) -> str:
    check_length(source)
    try:
        choices = json.loads(source)
    except (ValueError, RecursionError):
        choices = []
    check_choices(choices)
    return "start: " + " | ".join(quoted(choice) for choice in choices)


def _lark(source: str) -> str:
    check_length(source)
    if not source.strip():
        raise RequestError("the grammar is empty; give it a rule `start`")
    return source


def _gbnf(source: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    check_length(source)
    if depth_of(source.replace("(", "[").replace(")", "]")) > MAX_NESTING:
        raise too_large(f"its groups are nested deeper than {MAX_NESTING} levels")
    try:
        return str(gbnf_to_lark(source))
    except Exception as error:
        raise RequestError(f"the GBNF grammar cannot be read: {str(error)[:200]}") from error


def _composed(source: str) -> str:
    if len(source) > 8 * MAX_SOURCE_CHARACTERS:
        raise too_large(f"it has {len(source):,} characters")
    return source


KINDS: dict[str, Callable[[str], str]] = {
    "json_schema": lambda source: _json(parse_schema(source)),
    "json_schema_lenient": lambda source: _json(parse_schema(source), lenient=True),
    "json_object": lambda source: _json({"type": "object"}),
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
    "gbnf": _gbnf,
    "composed": _composed,
}
"""What the text of a source is: a schema, the same with unknown keywords passed over, anything (any object), an expression, a
JSON list of texts, a grammar in Lark's or in llama.cpp's syntax, or several grammars put together by `compose`."""


def translate(kind: str, source: str) -> str:
    """The engine's text for a source. Raises RequestError for what is malformed or too large to look at."""
    if kind not in KINDS:
        raise RequestError(f"{kind!r:.40} is no kind of grammar; there are {', '.join(KINDS)}")
    check_unicode(source)
    return KINDS[kind](source)


def quoted(text: str) -> str:
    """A text as a literal of Lark's syntax."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
