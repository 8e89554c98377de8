"""All suites, and the verdicts as people and programs read them."""

from collections.abc import Sequence
from typing import Any

from penstock.tools.conform import anthropic, ollama, openai
from penstock.tools.conform.check import CheckVerdict, Level, Suite

SUITES: dict[str, Suite] = {suite.dialect: suite for suite in (openai.SUITE, anthropic.SUITE, ollama.SUITE)}


def report(verdicts: Sequence[CheckVerdict]) -> dict[str, Any]:
    return {
        "summary": summary(verdicts),
        "checks": [
            {
                "dialect": verdict.check.dialect,
                "level": verdict.check.level.value,
                "name": verdict.check.name,
                "passed": verdict.has_passed,
                "fault": verdict.fault,
                "seconds": round(verdict.seconds, 3),
            }
            for verdict in verdicts
        ],
    }


def summary(verdicts: Sequence[CheckVerdict]) -> dict[str, dict[str, str]]:
    """Passed of all, by dialect and level."""
    found: dict[str, dict[str, str]] = {}
    for dialect in SUITES:
        for level in Level:
            some = [one for one in verdicts if (one.check.dialect, one.check.level) == (dialect, level)]
            if some:
                passed = sum(one.has_passed for one in some)
                found.setdefault(dialect, {})[level.value] = f"{passed} of {len(some)}"
    return found


def is_conformant(verdicts: Sequence[CheckVerdict]) -> bool:
    """Every MUST is met."""
    return all(verdict.has_passed for verdict in verdicts if verdict.check.level is Level.MUST)
