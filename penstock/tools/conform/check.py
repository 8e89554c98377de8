"""A check, what it is run against, and how a suite of them is run."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

ONE_NUMBER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
"""A JSON schema that answers are held to."""


class Level(StrEnum):
    MUST = "MUST"
    """Clients break without it."""
    SHOULD = "SHOULD"
    """Clients that use the feature need it."""


class Target(NamedTuple):
    """The server to be judged."""

    url: str
    model: str
    key: str = "none"
    timeout_s: float = 60.0

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def post(self, path: str, body: Any) -> Any:
        """What the server answers to a body, or to bytes as they are."""
        import httpx

        headers = self.headers | {"content-type": "application/json"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(f"{self.url}{path}", content=data, headers=headers, timeout=self.timeout_s)


class Unmet(Exception):
    """What was expected and did not come."""


@dataclass(frozen=True, slots=True)
class ApiCheck:
    dialect: str
    level: Level
    name: str
    run: Callable[[Target], None]


class CheckVerdict(NamedTuple):
    check: ApiCheck
    fault: str
    """Empty if it passed."""
    seconds: float

    @property
    def has_passed(self) -> bool:
        return not self.fault


CheckBody = Callable[[Target, Any], None]
"""What a check does with a target, and with a client of the dialect that is open at it."""


class Suite:
    """The checks of one dialect, in the order they were written."""

    def __init__(self, dialect: str, client: Callable[[Target], AbstractContextManager[Any]]) -> None:
        self.dialect = dialect
        self.checks: list[ApiCheck] = []
        self._client = client

    def must(self, look: CheckBody) -> CheckBody:
        return self._add(Level.MUST, look)

    def should(self, look: CheckBody) -> CheckBody:
        return self._add(Level.SHOULD, look)

    def _add(self, level: Level, look: CheckBody) -> CheckBody:
        def run(target: Target) -> None:
            with self._client(target) as sdk:
                look(target, sdk)

        self.checks.append(ApiCheck(self.dialect, level, look.__name__.replace("_", " "), run))
        return look


def expect(condition: Any, what: str) -> None:
    if not condition:
        raise Unmet(what)


def run_checks(
    checks: Iterable[ApiCheck], target: Target, on_verdict: Callable[[CheckVerdict], None]
) -> list[CheckVerdict]:
    """Every check is run, whatever the others said; a client that raises what nobody expected has found a fault too."""
    verdicts = []
    for check in checks:
        start_s, fault = time.monotonic(), ""
        try:
            check.run(target)
        except Unmet as error:
            fault = str(error)
        except Exception as error:
            fault = f"{type(error).__name__}: {str(error)[:200]}"
        verdicts.append(CheckVerdict(check, fault, time.monotonic() - start_s))
        on_verdict(verdicts[-1])
    return verdicts
