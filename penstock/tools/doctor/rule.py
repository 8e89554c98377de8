"""A rule: the signs by which something wrong is known, and the way out. A table of them is applied to a server's signs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any, NamedTuple

from penstock.amounts import format_bytes
from penstock.tools.doctor.finding import Finding, KnownFault
from penstock.tools.doctor.signs import Signs

_SIGNS = frozenset(sign.name for sign in fields(Signs)) - {"window_s", "missing"}


class Trigger(NamedTuple):
    """When a rule speaks, and what it says it has seen."""

    condition: Callable[[Signs], bool]
    seen: str
    """Names signs in braces, as `EvidenceFormatter` writes them."""


class EvidenceFormatter(Formatter):
    """Signs by their names, or one over another: `{x:%}` and `{x:.1f%}` are shares, `{x/y:ms}` seconds, `{x:bytes}` bytes."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        part, _, whole = str(key).partition("/")
        value = getattr(args[0], part)
        return value / getattr(args[0], whole) if whole else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.endswith("%"):
            return f"{100 * value:{format_spec[:-1] or '.0f'}} %"
        if format_spec == "ms":
            return f"{1e3 * value:,.0f} ms" if value >= 0.01 else f"{1e3 * value:,.2g} ms"
        return format_bytes(int(value)) if format_spec == "bytes" else f"{value:{format_spec}}"


_WORDS = EvidenceFormatter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(KnownFault):
    condition: Callable[[Signs], bool]
    seen: str

    def evidence(self, signs: Signs) -> str:
        return _WORDS.format(self.seen, signs)

    @property
    def reads(self) -> frozenset[str]:
        """The signs that condition and evidence look at; where one of them is NaN the rule is silent."""
        named = (word for _, name, _, _ in _WORDS.parse(self.seen) for word in (name or "").split("/"))
        return _SIGNS.intersection((*self.condition.__code__.co_names, *named))

    def holds(self, signs: Signs) -> bool:
        return not any(math.isnan(getattr(signs, sign)) for sign in self.reads) and self.condition(signs)

    def lacks(self, signs: Signs) -> tuple[str, ...]:
        """What would have to be known before the rule could be applied: metrics, or a flag."""
        metrics = {metric for sign in self.reads for metric in signs.missing.get(sign, ())}
        flags = {"--hardware"} if "floor_s" in self.reads and math.isnan(signs.floor_s) else set()
        return tuple(sorted(metrics | flags))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    """In the order of the rules."""
    unexamined: tuple[tuple[Rule, tuple[str, ...]], ...]
    """Rules that could not be applied, each with what it lacks."""


def diagnose(signs: Signs, rules: Sequence[Rule]) -> Diagnosis:
    lacking = ((rule, rule.lacks(signs)) for rule in rules)
    return Diagnosis(
        tuple(rule.finding(rule.evidence(signs)) for rule in rules if rule.holds(signs)),
        tuple((rule, names) for rule, names in lacking if names),
    )
