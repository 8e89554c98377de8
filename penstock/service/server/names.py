"""Names of tools and functions, as each dialect allows them: what its own servers refuse is refused here, by the field."""

import re
from typing import NamedTuple

from penstock.service.server.http.faults import invalid

SHOWN = 40
"""Characters of a refused name that are told."""


class NameRule(NamedTuple):
    """Names that a dialect takes, and how that is told."""

    pattern: re.Pattern[str]
    words: str


OPENAI_NAMES = NameRule(re.compile(r"[a-zA-Z0-9_-]{1,64}"), "use letters, digits, _ and -, at most 64 of them")
ANTHROPIC_NAMES = NameRule(re.compile(r"[a-zA-Z0-9_-]{1,128}"), "use letters, digits, _ and -, at most 128 of them")
OLLAMA_NAMES = NameRule(re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,512}"), "leave control characters out")


def checked_name(name: str, rule: NameRule, where: str) -> str:
    """The name. Raises an error that names the field."""
    if rule.pattern.fullmatch(name) is None:
        raise invalid(f"{where} is {name[:SHOWN]!a}; {rule.words}", where)
    return name
