"""Python literals, as some models write arguments, read piece by piece and converted to JSON. Nothing is ever evaluated."""

import json
import re
from collections.abc import Callable, Generator

from penstock.runtime.text.tools.reader import Reader

MAX_NESTING = 32
_WORD = re.compile(r"[A-Za-z0-9_+.\-]")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODED = {"x": 2, "u": 4, "U": 8}

Value = Generator[None, None, str | None]


def literal(reader: Reader, depth: int = 0) -> Value:
    """The JSON of the literal that comes next; None if there is none, or no end of it."""
    yield from reader.blanks()
    first = yield from reader.peek()
    if first in ("'", '"') and first:
        text = yield from _string(reader, first)
        return None if text is None else json.dumps(text, ensure_ascii=False)
    if first in ("[", "("):
        return (yield from _several(reader, literal, "]" if first == "[" else ")", "[]", depth))
    if first == "{":
        return (yield from _several(reader, _pair, "}", "{}", depth))
    word = ""
    while (character := (yield from reader.peek())) and _WORD.fullmatch(character):
        word += reader.take(1)
    if word in _WORDS:
        return _WORDS[word]
    return word if _NUMBER.fullmatch(word) else None


def _string(reader: Reader, quote: str) -> Value:
    reader.take(1)
    parts: list[str] = []
    while True:
        character = yield from reader.peek()
        if not character:
            return None
        reader.take(1)
        if character == quote:
            return "".join(parts)
        if character != "\\":
            parts.append(character)
            continue
        escape = yield from reader.peek()
        reader.take(1)
        if escape in _CODED:
            digits = ""
            for _ in range(_CODED[escape]):
                digits += (yield from reader.peek()) and reader.take(1)
            parts.append(_character(digits))
        else:
            parts.append(_ESCAPES.get(escape, escape))


def _character(digits: str) -> str:
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        return "\ufffd"


def _several(reader: Reader, item: Callable[[Reader, int], Value], close: str, marks: str, depth: int) -> Value:
    """Items up to `close`, a comma behind the last one or not; JSON puts them between `marks`."""
    reader.take(1)
    found: list[str] = []
    while depth < MAX_NESTING:
        yield from reader.blanks()
        has_comma = bool(found) and (yield from reader.starts(","))
        yield from reader.blanks()
        if (yield from reader.starts(close)):
            return marks[0] + ", ".join(found) + marks[1]
        value = None if found and not has_comma else (yield from item(reader, depth + 1))
        if value is None:
            return None
        found.append(value)
    return None


def _pair(reader: Reader, depth: int) -> Value:
    quote = yield from reader.peek()
    key = (yield from _string(reader, quote)) if quote in ("'", '"') and quote else None
    yield from reader.blanks()
    if key is None or not (yield from reader.starts(":")):
        return None
    value = yield from literal(reader, depth)
    return None if value is None else f"{json.dumps(key, ensure_ascii=False)}: {value}"
