"""Errors as clients see them: a status, and an object whose four keys are always there.

Says what the client can do and never how we are built: no paths, no addresses, no stacks.
"""

import msgspec

from penstock.core.batch import Fault, Finish
from penstock.engine.client import GONE
from penstock.errors import CapacityError, PenstockError, RequestError

Headers = tuple[tuple[bytes, bytes], ...]
NO_RETRY: Headers = ((b"x-should-retry", b"false"),)


class ApiError(Exception):
    """What ends a call: a client's fault (4xx) or ours (5xx)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def json(self) -> bytes:
        return msgspec.json.encode(self.body)


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, way_out: str) -> ApiError:
    return invalid(f"{param} is not supported; {way_out}", param, "unsupported_parameter")


def busy(
    message: str, retry_after_s: int, *, is_tenant: bool = False, code: str = "overloaded", headers: Headers = ()
) -> ApiError:
    """There is no room now: for this key (429), or for anyone (503)."""
    headers = ((b"retry-after", str(retry_after_s).encode()), *headers)
    if is_tenant:
        return ApiError(429, message, type="requests", code="rate_limit_exceeded", headers=headers)
    return ApiError(503, message, type="server_error", code=code, headers=headers)


def error_of(error: PenstockError, retry_after_s: int = 1) -> ApiError:
    """An error of ours as the client is told it."""
    if isinstance(error, RequestError):
        return invalid(str(error), error.param, error.code)
    if isinstance(error, CapacityError):
        return busy(str(error), retry_after_s)
    return ApiError(500, "the server failed to answer; the fault is ours", type="server_error")


def error_of_finish(finish: Finish, retry_after_s: int = 1) -> ApiError:
    """How a generation that ended in an error is told."""
    if finish.fault is Fault.REQUEST:
        return invalid(finish.message)
    if finish.fault is Fault.CAPACITY:
        return busy(finish.message, retry_after_s)
    if finish.fault is Fault.DEADLINE:
        return ApiError(504, finish.message, type="server_error", code="deadline_exceeded", headers=NO_RETRY)
    if finish.message == GONE:
        return busy(GONE, retry_after_s, code="engine_restarting")
    return ApiError(500, "the model failed on this request; others are not affected", type="server_error")
