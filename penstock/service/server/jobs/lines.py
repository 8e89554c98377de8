"""The lines of a batch: read one by one, checked, and answered."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.service.marks import TokenBound
from penstock.service.server.http.faults import ApiError
from penstock.service.server.jobs.endpoints import ENDPOINTS, checked_body
from penstock.service.server.openai.dialect import DIALECT
from penstock.service.server.reading import UNBOUNDED
from penstock.service.server.reading import read_line as reading_of_line

MAX_LINES = 50_000
MAX_LINE_BYTES = 16 << 20
MAX_ERRORS = 100
"""Faults that are listed of a file that is refused."""


class LineFault(NamedTuple):
    code: str
    message: str
    line: int | None
    param: str | None = None


class BatchLine(NamedTuple):
    number: int
    custom_id: str
    url: str
    body: Any
    num_bytes: int = 0


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of every line that is not blank."""
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if data.strip():
                yield number, data


def check_lines(path: Path, endpoint: str | None, max_lines: int = MAX_LINES) -> tuple[int, list[LineFault]]:
    """How many requests the file has, and what is wrong with it. Without an endpoint each line may have its own."""
    faults: list[LineFault] = []
    seen: set[str] = set()
    count = 0
    for number, data in lines_of(path):
        count += 1
        if count > max_lines:
            faults.append(
                LineFault("too_many_lines", f"the file has more than {max_lines:,} requests; split it", number)
            )
            break
        fault = _fault_of(number, data, endpoint, seen)
        if fault is not None:
            faults.append(fault)
            if len(faults) >= MAX_ERRORS:
                break
    if not count:
        faults.append(LineFault("empty_file", "the file has no requests; send one a line", None))
    return count, faults


def batch_bound(path: Path, endpoint: str, max_context: int) -> TokenBound:
    """Tokens that all lines may take; those of a file that is refused count for nothing. Blocks."""
    num_prompt = num_output = 0
    for number, data in lines_of(path):
        if _fault_of(number, data, endpoint, set()) is None:
            body = checked_body(ENDPOINTS[endpoint], msgspec.json.decode(data)["body"])
            one = line_bound(endpoint, body, len(data), max_context)
            num_prompt, num_output = num_prompt + one.num_prompt, num_output + one.num_output
    return TokenBound(num_prompt, num_output)


def line_bound(endpoint: str, body: Any, num_bytes: int, max_context: int) -> TokenBound:
    """Tokens that a line may take: it is held to them. What came before it may fill the context."""
    reading = reading_of_line(endpoint, body, num_bytes)
    bound = reading.bound(min(UNBOUNDED, max_context or UNBOUNDED))
    if getattr(body, "previous_response_id", None) or getattr(body, "conversation", None):
        bound = bound._replace(num_prompt=max(bound.num_prompt, max_context))
    return bound


def read_line(number: int, data: bytes) -> BatchLine:
    """A line of a file that was checked."""
    raw = msgspec.json.decode(data)
    return BatchLine(number, raw["custom_id"], raw["url"], raw["body"], len(data))


def _fault_of(number: int, data: bytes, endpoint: str | None, seen: set[str]) -> LineFault | None:
    def fault(code: str, what: str, param: str | None = None) -> LineFault:
        return LineFault(code, f"line {number}{what}", number, param)

    if len(data) > MAX_LINE_BYTES:
        return fault("line_too_long", f" is longer than {MAX_LINE_BYTES:,} bytes; shorten it")
    try:
        raw = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return fault("invalid_json_line", " is not JSON; send one object a line")
    if not isinstance(raw, dict):
        return fault("invalid_json_line", " is not a JSON object")
    custom_id = raw.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return fault("missing_required_parameter", " has no custom_id; name it", "custom_id")
    if custom_id in seen:
        return fault("duplicate_custom_id", f" has the custom_id of an earlier one: {custom_id[:80]!r}", "custom_id")
    seen.add(custom_id)
    if raw.get("method", "POST") != "POST":
        return fault("invalid_method", " has a method other than POST", "method")
    url = raw.get("url")
    if url not in ENDPOINTS or endpoint not in (None, url):
        asked = endpoint or ", ".join(ENDPOINTS)
        return fault("mismatched_endpoint", f" is for {str(url)[:80]!r}; it must be for {asked}", "url")
    try:
        checked_body(ENDPOINTS[url], raw.get("body"))
    except ApiError as error:
        return fault(error.code or "invalid_value", f": {error.message}", f"body.{error.param}")
    return None


def answer_line(custom_id: str, status: int, body: Any, request_id: str) -> bytes:
    return _line(custom_id, response={"status_code": status, "request_id": request_id, "body": body})


def failed_line(custom_id: str, error: ApiError, request_id: str) -> bytes:
    return answer_line(custom_id, error.status, DIALECT.error_value(error), request_id)


def expired_line(custom_id: str) -> bytes:
    """A request that was never answered."""
    message = "the batch expired before this request was answered"
    return _line(custom_id, error={"code": "batch_expired", "message": message})


def _line(custom_id: str, response: dict[str, Any] | None = None, error: dict[str, str] | None = None) -> bytes:
    value = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(value) + b"\n"
