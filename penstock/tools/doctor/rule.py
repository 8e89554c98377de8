"""A rule: the signs by which something wrong is known, and the way out. A table of them is applied to a server's signs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from penstock.tools.doctor.finding import Finding, KnownFault
from penstock.tools.doctor.signs import Signs

_SIGNS = frozenset(sign.name for sign in fields(Signs)) - {"window_s", "missing"}


class Trigger(NamedTuple):
    """When a rule speaks, and what it says it has seen."""

    condition: Callable[[Signs], bool]
    evidence: Callable[[Signs], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(KnownFault):
    condition: Callable[[Signs], bool]
    evidence: Callable[[Signs], str]

    @property
    def reads(self) -> frozenset[str]:
        """The signs that condition and evidence look at, by their code; where one of them is NaN the rule is silent."""
        looks: tuple[Any, ...] = (self.condition, self.evidence)
        return _SIGNS.intersection(name for look in looks for name in look.__code__.co_names)

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
