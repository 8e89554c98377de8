"""Errors of ours: what kind of fault it is, and what the client can do. How they are worded is the dialect's.

Messages never say how we are built: no paths, no addresses, no stacks.
"""

import logging
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from penstock.errors import CapacityError, PenstockError, RequestError, StoreError
from penstock.runtime.core.batch import Fault, Finish
from penstock.runtime.engine.client import GONE, SHUTTING_DOWN
from penstock.service import marks
from penstock.service.server.http.exchange import exchange_of

LOGGER = logging.getLogger(__name__)
Headers = tuple[tuple[bytes, bytes], ...]
NO_RETRY: Headers = ((b"x-should-retry", b"false"),)
LOST: Headers = ((marks.LOST_HEADER, b"1"),)


class ErrorKind(Enum):
    """Kinds below 500 are the client's fault. The status is HTTP's; a dialect may have another."""

    INVALID = "invalid", 400
    AUTHENTICATION = "authentication", 401
    PERMISSION = "permission", 403
    NOT_FOUND = "not found", 404
    METHOD = "method", 405
    BODY_TIMEOUT = "body timeout", 408
    CONFLICT = "conflict", 409
    TOO_LARGE = "too large", 413
    ENCODING = "encoding", 415
    HEADERS = "headers", 431
    RATE_LIMIT = "rate limit", 429
    """This key has had its share for now."""
    QUOTA = "quota", 429
    """This key has spent what it may."""
    INTERNAL = "internal", 500
    NOT_IMPLEMENTED = "not implemented", 501
    UNAVAILABLE = "unavailable", 503
    """There is no room for anyone, or no engine."""
    DEADLINE = "deadline", 504
    STORAGE = "storage", 507
    """What is to be kept cannot be written now."""

    def __init__(self, words: str, status: int) -> None:
        self.words = words
        self.status = status


class Overflow(NamedTuple):
    """A prompt that is longer than the model's context, in tokens."""

    num_prompt: int
    max_tokens: int
    """Wanted beside it."""
    max_context: int


class ApiError(Exception):
    """What ends a call."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers
        self.overflow = overflow

    @property
    def status(self) -> int:
        return self.kind.status


def invalid(
    message: str, param: str | None = None, code: str = "invalid_value", overflow: Overflow | None = None
) -> ApiError:
    return ApiError(ErrorKind.INVALID, message, param=param, code=code, overflow=overflow)


def unsupported(param: str, way_out: str) -> ApiError:
    return invalid(f"{param} is not supported; {way_out}", param, "unsupported_parameter")


def not_found(message: str, param: str | None = None, code: str = "not_found") -> ApiError:
    return ApiError(ErrorKind.NOT_FOUND, message, param=param, code=code)


def busy(
    message: str, retry_after_s: int, *, is_tenant: bool = False, code: str = "overloaded", headers: Headers = ()
) -> ApiError:
    """There is no room now: for this key, or for anyone."""
    headers = ((b"retry-after", str(retry_after_s).encode()), *headers)
    if is_tenant:
        return ApiError(ErrorKind.RATE_LIMIT, message, code="rate_limit_exceeded", headers=headers)
    return ApiError(ErrorKind.UNAVAILABLE, message, code=code, headers=headers)


def loading() -> ApiError:
    return busy("the model is being loaded; try again in a moment", 1, code="model_loading")


def shutting_down(headers: Headers = ()) -> ApiError:
    return busy(SHUTTING_DOWN, 1, code="shutting_down", headers=headers)


def failed() -> ApiError:
    return ApiError(ErrorKind.INTERNAL, "the server failed to answer; the fault is ours")


def error_of(error: PenstockError) -> ApiError:
    """An error as the client receives it."""
    if isinstance(error, RequestError):
        return invalid(str(error), error.param, error.code)
    if isinstance(error, CapacityError):
        return shutting_down() if str(error) == SHUTTING_DOWN else busy(str(error), 1)
    if isinstance(error, StoreError):
        return ApiError(ErrorKind.STORAGE, str(error), code="storage_unavailable")
    return failed()


def error_of_finish(finish: Finish, retry_after_s: int = 1) -> ApiError:
    """How a generation that ended in an error is reported."""
    if finish.fault is Fault.REQUEST:
        return invalid(finish.message)
    if finish.fault is Fault.CAPACITY:
        return busy(finish.message, retry_after_s)
    if finish.fault is Fault.DEADLINE:
        return ApiError(ErrorKind.DEADLINE, finish.message, code="deadline_exceeded", headers=NO_RETRY)
    if finish.message == SHUTTING_DOWN:
        return shutting_down(LOST)
    if finish.message == GONE:
        return busy(GONE, retry_after_s, code="engine_restarting", headers=LOST)
    return ApiError(ErrorKind.INTERNAL, "the model failed on this request; others are not affected")


def log_fault(error: ApiError, scope: Mapping[str, Any]) -> None:
    """A line a call that was refused or failed, by its id; what its client sent wrong is for debugging. Messages may hold words
    of a client, so they are left out."""
    if error.status < 500 and error.kind not in (ErrorKind.RATE_LIMIT, ErrorKind.QUOTA):
        level, ended = logging.DEBUG, "is wrong"
    elif error.kind in (ErrorKind.RATE_LIMIT, ErrorKind.QUOTA, ErrorKind.UNAVAILABLE):
        level, ended = logging.INFO, "is refused"
    else:
        level, ended = logging.WARNING, "failed"
    if LOGGER.isEnabledFor(level):
        route = getattr(scope.get("route"), "path", "other")
        request_id, status, code = exchange_of(scope).name, error.status, error.code or error.kind.words
        fields = {"request": request_id, "route": route, "status": status, "code": code}
        LOGGER.log(level, "request %s %s: %d %s, %s", request_id, ended, status, code, route, extra={"fields": fields})


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
