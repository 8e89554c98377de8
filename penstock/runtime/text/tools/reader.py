"""Reads a text that is still being generated, piece by piece, in code written as if all of it were there.

Every method that has to know what follows is a generator: it yields whenever more text is needed, and goes on when there is
some or when none will come. Nothing it decides depends on the pieces the text came in. Time is proportional to the text.
"""

import json
import re
from collections.abc import Callable, Generator

Need = Generator[None, None, bool]
Text = Generator[None, None, str | None]

BLANK = " \t\r\n"
MAX_HELD = 1 << 16
"""Characters of a name or a key that are looked through for its end."""
_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["\[\]{}]')
_SCALAR_END = re.compile(r"[,\]}\s]")


class Reader:
    def __init__(self) -> None:
        self._text = ""
        self._place = 0
        self.is_closed = False
        self.seen: list[str] | None = None
        """Text read since a point, which may have to be given back."""

    def add(self, text: str) -> None:
        self._text = self._text[self._place :] + text
        self._place = 0

    @property
    def left(self) -> str:
        return self._text[self._place :]

    def take(self, count: int) -> str:
        taken = self._text[self._place : self._place + count]
        self._place += len(taken)
        if self.seen is not None:
            self.seen.append(taken)
        return taken

    def peek(self) -> Generator[None, None, str]:
        """The next character; empty at the end."""
        while self._place >= len(self._text):
            if self.is_closed:
                return ""
            yield
        return self._text[self._place]

    def blanks(self) -> Need:
        while (yield from self.peek()) in tuple(BLANK):
            rest = self._text[self._place :]
            self.take(len(rest) - len(rest.lstrip(BLANK)))
        return True

    def starts(self, literal: str) -> Need:
        """Take a literal if the text goes on with it."""
        while True:
            rest = self._text[self._place : self._place + len(literal)]
            if rest == literal:
                self.take(len(literal))
                return True
            if not literal.startswith(rest) or self.is_closed:
                return False
            yield

    def ends(self, literal: str) -> Need:
        """Take a literal, or as much of it as there is if the text ends within it."""
        if (yield from self.starts(literal)):
            return True
        if self.is_closed and literal.startswith(self.left):
            self.take(len(self.left))
        return False

    def until(self, marker: str, limit: int | None = MAX_HELD) -> Text:
        """The text up to a marker, which is taken too; None if it does not come."""
        begin = 0
        while True:
            found = self._text.find(marker, self._place + begin)
            if found >= 0:
                text = self.take(found - self._place)
                self.take(len(marker))
                return text
            length = len(self._text) - self._place
            if self.is_closed or (limit is not None and length > limit):
                return None
            begin = max(length - len(marker) + 1, 0)
            yield

    def pass_until(self, markers: tuple[str, ...], emit: Callable[[str], None]) -> Text:
        """Pass text on as soon as it is certain to stand before all markers; returns the one that came, which is taken."""
        while True:
            found = [(place, marker) for marker in markers if (place := self._text.find(marker, self._place)) >= 0]
            if found:
                place, marker = min(found)
                emit(self.take(place - self._place))
                return self.take(len(marker))
            rest = self._text[self._place :]
            held = 0 if self.is_closed else max(_held(rest, marker) for marker in markers)
            emit(self.take(len(rest) - held))
            if self.is_closed:
                return None
            yield

    def string(self) -> Text:
        """A JSON string's value; None if there is none, or no end of it."""
        if not (yield from self.starts('"')):
            return None
        parts = ['"']
        while True:
            found = _IN_STRING.search(self._text, self._place)
            if found is None:
                parts.append(self.take(len(self._text) - self._place))
                if self.is_closed:
                    return None
                yield
                continue
            parts.append(self.take(found.end() - self._place))
            if found[0] == '"':
                return _loaded("".join(parts))
            if (yield from self.peek()) == "":
                return None
            parts.append(self.take(1))

    def value(self, emit: Callable[[str], None]) -> Need:
        """Pass on a JSON value as it is written; False if it does not end, or is none."""
        first = yield from self.peek()
        if first not in tuple('"[{'):
            return (yield from self._scalar(emit))
        depth = 0
        in_string = False
        while True:
            found = (_IN_STRING if in_string else _STRUCTURE).search(self._text, self._place)
            if found is None:
                emit(self.take(len(self._text) - self._place))
                if self.is_closed:
                    return False
                yield
                continue
            emit(self.take(found.end() - self._place))
            mark = found[0]
            if mark == "\\":
                if (yield from self.peek()) == "":
                    return False
                emit(self.take(1))
            elif mark == '"':
                in_string = not in_string
            else:
                depth += 1 if mark in "[{" else -1
            if not depth and not in_string:
                return True

    def _scalar(self, emit: Callable[[str], None]) -> Need:
        is_any = False
        while True:
            found = _SCALAR_END.search(self._text, self._place)
            text = self.take((found.start() if found else len(self._text)) - self._place)
            is_any = is_any or bool(text)
            emit(text)
            if found is not None or self.is_closed:
                return is_any and found is not None
            yield


def _held(text: str, marker: str) -> int:
    """How much of the end of a text may be the beginning of a marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def _loaded(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
