"""Reads settings out of untrusted mappings: a `config.json` or the metadata of a GGUF file.

Every number is checked for kind and range here, before anything is sized by it. Knows nothing of any architecture.
A value of null counts as absent, as it does in the configs that models are published with.
"""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from penstock.errors import ModelFileError

CONFIG = "config.json"
GGUF = "GGUF metadata"
MAX_CONTEXT = 2**27

T = TypeVar("T")


class Fields:
    """A mapping and the name of the file it came from, for messages. `prefix` stands before every field's name."""

    def __init__(self, values: Mapping[str, Any], source: str = CONFIG, prefix: str = "", path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ModelFileError(f"{source}: {path or 'the top level'} is {reprlib.repr(values)}; it must be an object")
        self._values = values
        self._prefix = prefix
        self._path = path
        self.source = source

    def has(self, name: str) -> bool:
        return self._get(name) is not None

    def states(self, name: str) -> bool:
        """The field is present, even as null: some configs turn a default off that way."""
        return self._prefix + name in self._values

    def or_else(self, defaults: Mapping[str, Any]) -> "Fields":
        """The same fields, with defaults for those that are absent."""
        given = {name: value for name, value in self._values.items() if value is not None or name not in defaults}
        return Fields({**defaults, **given}, self.source, self._prefix, self._path)

    def without(self, *names: str) -> "Fields":
        """The same fields, as if these were absent."""
        hidden = {self._prefix + name for name in names}
        left = {name: value for name, value in self._values.items() if name not in hidden}
        return Fields(left, self.source, self._prefix, self._path)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = default if self._get(name) is None else self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low:,} to {high:,}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value: Any = default if self._get(name) is None else self._get(name)
        if not _is_number(value, low, high):
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float, default: float | None = None) -> float | None:
        """The default applies only where the field is absent, not where it is null."""
        if not self.has(name):
            return None if self.states(name) else default
        return self.number(name, low, high)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = default if self._get(name) is None else self._get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, table: Mapping[str, T], default: str | None = None) -> T:
        """The entry of `table` that the field names."""
        value = default if self._get(name) is None else self._get(name)
        if not isinstance(value, str) or value not in table:
            raise self.wrong(name, "one of " + ", ".join(table))
        return table[value]

    def choices(self, name: str, table: Mapping[str, T], length: int) -> list[T]:
        """The entries of `table` that a list of words names."""
        words = self.items(name, length)
        if not all(isinstance(word, str) and word in table for word in words):
            raise self.wrong(name, f"a list of {', '.join(table)}")
        return [table[word] for word in words]

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse a setting that is not implemented: the field must be absent or one of these."""
        value = self._get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise self.wrong(name, "absent or " + " or ".join(repr(one) for one in allowed))

    def numbers(self, name: str, length: int, low: float, high: float) -> tuple[float, ...]:
        values = self.items(name, length)
        if not all(_is_number(value, low, high) for value in values):
            raise self.wrong(name, f"a list of {length} numbers from {low:g} to {high:g}")
        return tuple(float(value) for value in values)

    def is_list(self, name: str) -> bool:
        """Lists come from JSON as such, from GGUF as arrays that know how to become one."""
        value = self._get(name)
        return hasattr(value, "tolist") or (isinstance(value, Sequence) and not isinstance(value, str | bytes))

    def items(self, name: str, length: int | None = None) -> Sequence[Any]:
        values = self._get(name)
        if not self.is_list(name) or (length is not None and len(values) != length):
            raise self.wrong(name, "a list" if length is None else f"a list of {length}")
        items: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else values
        return items

    def names(self) -> list[str]:
        """Of all fields that are present."""
        return [name.removeprefix(self._prefix) for name in self._values if name.startswith(self._prefix)]

    def section(self, name: str) -> "Fields":
        """The fields nested under a name; none if it is absent."""
        value = self._get(name)
        return Fields({} if value is None else value, self.source, path=self._full(name))

    def wrong(self, name: str, wanted: str) -> ModelFileError:
        value = self._get(name)
        found = f"there is no {self._full(name)}" if value is None else f"{self._full(name)} is {reprlib.repr(value)}"
        return ModelFileError(f"{self.source}: {found}; it must be {wanted}")

    def _full(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else self._prefix + name

    def _get(self, name: str) -> Any:
        return self._values.get(self._prefix + name)


def _is_number(value: Any, low: float, high: float) -> bool:
    """Written as `low <= value <= high` so that NaN fails."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
