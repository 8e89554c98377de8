"""Errors of the grammar engine, reworded so that they name the fault and the way out."""

import re

from penstock.errors import RequestError

_TOO_LARGE = ("too big", "too large", "too complex", "limit exceeded", "too many", "fuel")
_KEYS = re.compile(r"Unimplemented keys: \[(.*?)\]")


def fault_of(message: str, kind: str) -> RequestError:
    """The client's error for a message of the engine."""
    is_schema = kind.startswith("json_schema")
    code = "invalid_json_schema" if is_schema else "invalid_grammar"
    noun = "schema" if is_schema else "grammar"
    keys = _KEYS.search(message)
    if keys is not None:
        return RequestError(f"the schema uses {keys[1]}, which cannot be held to; remove it", code=code)
    first = _first_line(message)
    if any(sign in message for sign in _TOO_LARGE):
        return RequestError(f"the {noun} is too large ({first}); make it smaller", code="grammar_too_large")
    if message.startswith("NoExtension"):
        return RequestError(f"the {noun} allows no text at all; loosen it", code=code)
    return RequestError(f"the {noun} cannot be used: {first}", code=code)


def _first_line(message: str) -> str:
    """The engine shows where it stopped on further lines; of a regular expression it tells what is wrong on the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reported = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    first = re.sub(r"^at \d+\(\d+\): ", "", lines[0]) if lines else "it is malformed"
    return (reported or first)[:240]
