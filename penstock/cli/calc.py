"""`penstock calc NAME`: a calculator's answer as a table, or as the JSON that pages draw.

Each row of `penstock.tools.calculate.table` is a command of its own; this only lays out what it hands back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any, NamedTuple

from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError
from penstock.tools.calculate.table import ALIASES, CALCULATORS, Calculator, calculate, find


@dataclass(frozen=True, slots=True)
class Config:
    """List the calculators, each a command of its own: penstock calc NAME --help lists its inputs."""

    name: str = field(default="", metadata={"positional": True})
    """Calculator to use"""
    json: bool = False
    """Print JSON for machines"""


@dataclass(frozen=True, slots=True)
class CalcOutput:
    """How the answer is shown."""

    json: bool = False
    """Print JSON for machines: achievable and textbook figures, formulas and origins"""
    textbook: bool = False
    """Show figures by the vendor's peak beside those that kernels reach"""


class CalcCommand(NamedTuple):
    """What `cli.main` runs: as a module of a command has it."""

    Config: type
    run: Callable[[Any], int]


def run(config: Config) -> int:
    if config.name:
        find(config.name)
        raise ConfigError(f"calc {config.name} takes its flags after the name")
    rows = [(name, calculator.question) for name, calculator in CALCULATORS.items()]
    if config.json:
        print_json([{"name": name, "question": question} for name, question in rows])
    else:
        print_table(("", ""), rows)
        print("\npenstock calc NAME --help lists the inputs of one")
    return 0


def _command(calculator: Calculator) -> CalcCommand:
    made = make_dataclass(
        "Config",
        [
            ("output", CalcOutput, field(default_factory=CalcOutput)),
            ("inputs", calculator.inputs, field(default_factory=calculator.inputs)),
        ],
        frozen=True,
        namespace={"__doc__": calculator.question},
    )
    return CalcCommand(made, lambda config: _answer(calculator.name, config))


def _answer(name: str, config: Any) -> int:
    answer = calculate(name, config.inputs)
    if config.output.json:
        print_json(answer)
        return 0
    print(f"{answer['question']}\n")
    _print("inputs", answer["quantities"], "origin", config.output.textbook)
    _print("answer", answer["figures"], "formula", config.output.textbook)
    for note in answer["notes"]:
        print(printable(note))
    return 0


def _print(title: str, rows: list[dict[str, Any]], last: str, is_beside: bool) -> None:
    if not rows:
        return
    values = {"value": "", "textbook": "textbook"} if is_beside else {"value": ""}
    laid = [
        (
            row.get("label", row["key"].replace("_", " ")),
            *(in_words(row[key], row["unit"]) for key in values),
            row[last],
        )
        for row in rows
    ]
    print_table((title, *values.values(), "from"), laid)
    print()


_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "bytes/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "flop": ((1e12, "TFLOP"), (1e9, "GFLOP"), (1.0, "FLOP")),
    "flop/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s")),
}


def in_words(value: Any, unit: str) -> str:
    """A figure as people write it; GB is 1e9 bytes."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return " ".join(in_words(one, unit) for one in value)
    if unit == "share":
        return f"{100.0 * value:.4g} %"
    if unit == "$":
        return f"${value:,.2f}" if abs(value) >= 1 else f"${value:.3g}"
    for scale, name in _SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{value / scale:,.4g} {name}"
    number = f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.4g}"
    return f"{number} {unit}".rstrip()


MEMBERS: Mapping[str, CalcCommand] = {name: _command(find(name)) for name in (*CALCULATORS, *ALIASES)}
"""`penstock calc NAME`, each with flags of its own."""
