"""The calculators by name. A new one is a function, its inputs, and a row here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError
from penstock.fields import field_docstrings
from penstock.tools.calculate import memory, money, service, speed
from penstock.tools.calculate.sheet import Sheet, merged


@dataclass(frozen=True, slots=True)
class Calculator:
    inputs: type
    """A frozen dataclass: its fields are flags of the command and fields of the page."""
    work: Callable[[Any, Sheet], None]

    @property
    def name(self) -> str:
        return self.work.__name__

    @property
    def question(self) -> str:
        return (self.inputs.__doc__ or "").strip()


_TABLE = (
    Calculator(speed.ThroughputInputs, speed.throughput),
    Calculator(memory.KvInputs, memory.kv),
    Calculator(memory.MemoryInputs, memory.memory),
    Calculator(memory.UsersInputs, memory.users),
    Calculator(speed.RooflineInputs, speed.roofline),
    Calculator(speed.HierarchyInputs, speed.hierarchy),
    Calculator(speed.AttentionInputs, speed.attention),
    Calculator(speed.SpeculationInputs, speed.speculation),
    Calculator(service.MetricsInputs, service.metrics),
    Calculator(service.QueueInputs, service.queue),
    Calculator(memory.PrefixInputs, memory.prefix),
    Calculator(memory.TransferInputs, memory.transfer),
    Calculator(memory.ColdstartInputs, memory.coldstart),
    Calculator(money.CostInputs, money.cost),
    Calculator(service.ShedInputs, service.shed),
    Calculator(service.BatchingInputs, service.batching),
    Calculator(service.SamplingInputs, service.sampling),
)
CALCULATORS: Mapping[str, Calculator] = {one.name: one for one in _TABLE}
ALIASES: Mapping[str, str] = {"speculate": "speculation", "money": "cost"}


def find(name: str) -> Calculator:
    known = CALCULATORS.get(ALIASES.get(name, name))
    if known is None:
        near = get_close_matches(name, CALCULATORS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown calculator {name!r}: {hint}choose one of {', '.join(CALCULATORS)}")
    return known


def calculate(name: str, inputs: Any) -> dict[str, Any]:
    """The answer as JSON holds it, with what is achievable and with the vendor's peak. `inputs` is the calculator's own."""
    calculator = find(name)
    reached, peak = Sheet("achievable"), Sheet("textbook")
    try:
        calculator.work(inputs, reached)
        calculator.work(inputs, peak)
    except (ZeroDivisionError, OverflowError) as error:
        raise ConfigError("these inputs divide by zero or pass every bound; choose numbers above 0") from error
    return merged(calculator.name, calculator.question, asdict(inputs), reached, peak)


def inputs_of(name: str, values: Mapping[str, Any]) -> Any:
    """A calculator's inputs from plain values, as a page sends them. A name it does not take is an error."""
    calculator = find(name)
    known = {one["key"]: one for one in describe(calculator.name)["inputs"]}
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            raise ConfigError(f"{name} takes no {key}" + (f"; did you mean {near[0]}?" if near else ""))
    return calculator.inputs(**{key: _typed(known[key], value) for key, value in values.items()})


def _typed(declared: Mapping[str, Any], value: Any) -> Any:
    """The value as its field declares it: whole numbers stay whole, lists become tuples."""
    kind, is_number = declared["kind"], isinstance(value, int | float) and not isinstance(value, bool)
    if value is None and declared["default"] is None:
        return None
    if kind == "number" and is_number:
        return float(value)
    if kind == "whole number" and is_number and math.isfinite(value) and value == int(value):
        return int(value)
    if kind == "texts" and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind == "text" and isinstance(value, str):
        return value
    if kind == "choice" and value in declared["choices"]:
        return value
    expected = f"one of {', '.join(declared['choices'])}" if kind == "choice" else f"a {kind}"
    raise ConfigError(f"{declared['key']} is {value!r}; it takes {expected.replace('a texts', 'a list of texts')}")


def describe(name: str) -> dict[str, Any]:
    """A calculator as a form is drawn of it: its question, and each input with kind, default, choices and help."""
    calculator = find(name)
    hints, help_texts = get_type_hints(calculator.inputs), field_docstrings(calculator.inputs)
    return {
        "calculator": calculator.name,
        "question": calculator.question,
        "inputs": [
            {
                "key": declared.name,
                "kind": _kind(hints[declared.name]),
                "choices": list(_choices(hints[declared.name])),
                "default": list(declared.default) if isinstance(declared.default, tuple) else declared.default,
                "help": help_texts[declared.name],
            }
            for declared in fields(calculator.inputs)
        ],
    }


def _kind(hint: Any) -> str:
    if _choices(hint):
        return "choice"
    if get_origin(hint) is tuple:
        return "texts"
    names = {float: "number", int: "whole number", str: "text"}
    return next(names[one] for one in (hint, *get_args(hint)) if one in names)


def _choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()
