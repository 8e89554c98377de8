"""How much work a chat template may do for one conversation.

Owns the counting of steps and characters. Code that does work on behalf of a template asks here first, so a template that
would not end is refused after a known amount of work, in any thread, without a clock.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# A template of a known family takes a few hundred steps a message and copies each text a dozen times at most.
BASE_STEPS = 100_000
STEPS_PER_VALUE = 500
BASE_CHARACTERS = 2 << 20
COPIES = 32
"""How often each character that was put in may be handled."""

MAX_DEPTH = 64
"""Deepest nesting of lists and mappings, and of macro calls."""
MAX_INTEGER_BITS = 1024

_EMPTY: dict[str, str] = {}
CONTAINERS = (list, tuple, dict, type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
"""The kinds of value that hold others; all a template can make or be given."""


class TemplateLimitError(Exception):
    """The template asked for more than it may have."""


class Size(NamedTuple):
    """A value measured as a tree: what is held twice counts twice."""

    values: int
    characters: int
    depth: int


class Budget:
    """Steps and characters left. Spending more than is left raises, and goes on raising."""

    __slots__ = ("_characters", "_depth", "_steps")

    def __init__(self, steps: int, characters: int) -> None:
        self._steps = steps
        self._characters = characters
        self._depth = 0

    @classmethod
    def for_probe(cls) -> "Budget":
        """Enough for a conversation of a few words."""
        return cls(BASE_STEPS // 10, BASE_CHARACTERS // 10)

    @classmethod
    def for_input(cls, values: Any) -> "Budget":
        """For values that are known to be small enough to go through, such as a request's messages."""
        size = cls(1 << 62, 1 << 62).value(values)
        steps = BASE_STEPS + STEPS_PER_VALUE * size.values + size.characters // 16
        return cls(steps, BASE_CHARACTERS + COPIES * size.characters)

    def step(self, count: int) -> None:
        self._steps -= count
        if self._steps < 0:
            raise TemplateLimitError("it takes too many steps")

    def write(self, characters: int) -> None:
        """Account for text of this many characters being made or read through."""
        self._characters -= characters
        if self._characters < 0:
            raise TemplateLimitError("it makes too much text")

    def text(self, text: str) -> None:
        self.write(characters_of(text))

    def search(self, text: str, pattern: str) -> None:
        """Account for looking for a pattern at every position, as searches from the right and stripping do."""
        self.write(len(text) * len(pattern) // 64)

    def enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateLimitError("its macros call one another too deeply")

    def leave(self) -> None:
        self._depth -= 1

    def value(self, value: Any) -> Size:
        """Account for going through all of a value; return its size."""
        if isinstance(value, str):
            size = characters_of(value)
            self.write(size)
            return Size(1, size, 0)
        if not isinstance(value, CONTAINERS):
            self.step(len(value) if isinstance(value, range) else 1)
            return Size(1, 16, 0)
        values, characters, depth = 1, 0, 0
        level: list[Any] = [value]
        # One level of nesting at a time, so that neither the stack nor a value held many times can run away.
        while level:
            depth += 1
            if depth > MAX_DEPTH:
                raise TemplateLimitError("its values are nested too deeply")
            below: list[Any] = []
            for container in level:
                self.step(len(container) + 1)
                items: Iterable[Any] = container
                if isinstance(container, dict):
                    values += len(container)
                    items = (*container, *container.values())
                for item in items:
                    values += 1
                    if isinstance(item, str):
                        characters += len(item) if item.isascii() else 4 * len(item)
                    elif isinstance(item, CONTAINERS):
                        below.append(item)
                    else:
                        characters += 16
            level = below
        self.write(characters)
        return Size(values, characters, depth)

    def items(self, values: Iterable[Any], steps: int = 1) -> Iterator[Any]:
        """The values one by one, each for so many steps."""
        for value in values:
            self.step(steps)
            yield value


def characters_of(text: str) -> int:
    """Characters as memory counts them: beyond ASCII they take up to four bytes."""
    return len(text) if text.isascii() else 4 * len(text)
