"""What a calculator hands back: quantities it started from, each with its origin, and figures, each with its formula.

Owns the shape of an answer as JSON holds it; its keys are what pages and tests read and do not change.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from penstock.errors import ConfigError

Basis = Literal["achievable", "textbook"]
"""`achievable` is what good kernels reach of a device; `textbook` is the vendor's peak."""
Unit = Literal[
    "", "bytes", "bytes/s", "s", "tokens", "tokens/s", "words/s", "flop", "flop/s", "flop/byte", "share", "$", "bits"
]
Value = float | int | str | bool | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number the answer starts from."""

    key: str
    value: Value
    unit: Unit
    origin: str
    """Where it comes from: given, a published shape, a datasheet, what kernels reach."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number the answer consists of."""

    key: str
    label: str
    value: Value
    unit: Unit
    formula: str
    """In the words of quantities and of figures above it."""


@dataclass(slots=True)
class Sheet:
    """An answer in the making: calculators write it, one line after the other."""

    basis: Basis
    quantities: list[Quantity] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, key: str, value: Value, unit: Unit, origin: str = "given") -> None:
        if all(known.key != key for known in self.quantities):
            self.quantities.append(Quantity(key, value, unit, origin))

    def put(self, key: str, value: Value, unit: Unit, label: str, formula: str) -> None:
        if isinstance(value, float) and value != value:
            raise ConfigError(f"{label} is not a number with these inputs; check for zeros")
        self.figures.append(Figure(key, label, value, unit, formula))


def merged(name: str, question: str, inputs: dict[str, Any], reached: Sheet, peak: Sheet) -> dict[str, Any]:
    """One answer of both: `value` with what is achievable, `textbook` with the vendor's peak."""
    return {
        "calculator": name,
        "question": question,
        "inputs": inputs,
        "quantities": _beside(reached.quantities, peak.quantities),
        "figures": _beside(reached.figures, peak.figures),
        "values": {figure.key: figure.value for figure in reached.figures},
        "textbook": {figure.key: figure.value for figure in peak.figures},
        "notes": list(dict.fromkeys([*reached.notes, *peak.notes])),
    }


def _beside(
    reached: Sequence[Quantity] | Sequence[Figure], peak: Sequence[Quantity] | Sequence[Figure]
) -> list[dict[str, Any]]:
    others = {one.key: one for one in peak}
    return [asdict(one) | {"textbook": others[one.key].value if one.key in others else None} for one in reached]


def positive(name: str, value: float) -> float:
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{name.replace('_', '-')} is {value:g}; choose a number above 0")
    return value
