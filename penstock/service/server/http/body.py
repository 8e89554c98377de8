"""Bodies: read within bounds, parsed, and checked against their type. Every fault names the field."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from random import random
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect, Request

from penstock.service import marks
from penstock.service.config import ServerConfig
from penstock.service.edge.bodies import IN_FLIGHT, BodiesInFlight, BodyAccount
from penstock.service.edge.memory import LARGE_BYTES, trim_memory
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.exchange import RELAYED, exchange_of
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid, unsupported
from penstock.service.server.http.large import BYTES_BEGUN, BurstGate, Turns, yield_to_others

B = TypeVar("B", bound=msgspec.Struct)

READ_S = 30.0
"""A body must have arrived after this time."""
GRACE_S = 10.0
"""As long as headers may take. A client with hundreds of calls in one thread sends a body seconds after its headers."""
LEAST_BYTES_PER_S = 4096
"""A body that comes more slowly, after that, is given up: its sender holds memory and gives nothing."""
SPREAD_S = 1.0
"""Bodies that began together are given up one after another."""
FEW_BYTES = 512
"""A body of no more is answered without looking whether its sender is still there."""
MAX_VALUES = 1 << 18
"""Commas of a body, and colons: what is beyond takes longer to take apart than it is worth. A context that is longer than the
bound on names raises it, since a text may hold one a token."""
MAX_NAMES = 1 << 15
MAX_RESUME_BYTES = 4 << 20
"""Of the tokens of an answer that another replica began."""
MAX_FIELDS = 1024
"""Names that a body may have itself."""
LEAST_RUN_BYTES = 1 << 20
MAX_CHARACTERS_PER_TOKEN = 32
"""Texts with more characters than this for each token of the context are refused unread; words have about four a token."""
MAX_BYTES_PER_CHARACTER = 12
"""As JSON writes it: a pair of escapes."""
_WHERE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_KEY = re.compile(r"length <= (\d+) - at `key` in `\$\.?([^`]*)`$")
_FIRST_NAME = re.compile(r"\w+")
_BEYOND = re.compile(r"(<|>)=? ")


class BodyLimits(NamedTuple):
    """What a body may be; those of texts follow from the longest context that is served."""

    max_bytes: int
    max_names: int = MAX_NAMES
    max_run_bytes: int = 1 << 62
    """Of what stands between two quotes: more is a text that is longer than any context."""


def body_limits(max_bytes: int, max_context: int) -> BodyLimits:
    """With a context that is not known, texts have no bound of their own."""
    if not max_context:
        return BodyLimits(max_bytes)
    max_run_bytes = max(max_context * MAX_CHARACTERS_PER_TOKEN * MAX_BYTES_PER_CHARACTER, LEAST_RUN_BYTES)
    return BodyLimits(max_bytes, max(MAX_NAMES, max_context), max_run_bytes)


class BodyScan:
    """Looks at a body while it arrives, so that one that will be refused is not received to its end."""

    def __init__(self, limits: BodyLimits) -> None:
        self.num_bytes = 0
        self._limits = limits
        self._num_values = 0
        self._num_names = 0
        self._num_run = 0
        self._is_data = False

    def take(self, part: bytes) -> None:
        """Raises the error that names what there is too much of."""
        limits = self._limits
        self.num_bytes += len(part)
        if self.num_bytes > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        self._num_values += part.count(b",")
        self._num_names += part.count(b":")
        if self._num_values > MAX_VALUES or self._num_names > limits.max_names:
            raise _too_many()
        first = part.find(b'"')
        self._check_run(len(part) if first < 0 else first)
        if first >= 0:
            last = part.rfind(b'"')
            self._num_run = len(part) - last - 1
            self._is_data = part.startswith(b"data:", last + 1)
            self._check_run(0)

    def _check_run(self, num_more: int) -> None:
        self._num_run += num_more
        if self._num_run > self._limits.max_run_bytes and not self._is_data:
            message = f"the body has a text of over {self._num_run:,} bytes, longer than any context here; shorten it"
            raise invalid(message, code="context_length_exceeded")


async def read_body(request: Request, limits: BodyLimits, account: BodyAccount | None = None) -> bytes:
    """The whole body, unless it is too long or too slow: measured while it arrives, whatever its length claims."""
    max_bytes = limits.max_bytes
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(ErrorKind.ENCODING, "compressed bodies are not read; send it plain", code="unsupported_encoding")
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    scan = BodyScan(limits)
    loop = asyncio.get_running_loop()
    start_s = loop.time() + random() * SPREAD_S
    try:
        async with asyncio.timeout(GRACE_S) as patience:
            async for part in request.stream():
                if not part:  # its end
                    continue
                scan.take(part)
                if account is not None:
                    account.add(len(part))
                parts.append(part)
                patience.reschedule(start_s + min(GRACE_S + scan.num_bytes / LEAST_BYTES_PER_S, READ_S))
    except TimeoutError:
        raise _too_slow() from None
    if scan.num_bytes > FEW_BYTES:
        await look_up(request)
    return b"".join(parts)


async def look_up(request: Request) -> None:
    """Raise ClientDisconnect if the client has left meanwhile: one turn of the event loop shows it, and what follows costs more
    than that turn."""
    await asyncio.sleep(0)
    connection = request.scope.get("penstock.connection")
    if connection is not None and connection.is_gone:
        await until_gone(request.receive)  # the protocol has to know it too: it would answer otherwise
        raise ClientDisconnect


class BodyReader:
    """Shared by all requests: bodies in flight are counted together, and bursts begin over several turns of the loop."""

    def __init__(self, config: ServerConfig, max_context: Callable[[], int]) -> None:
        """`max_context` tells the longest context that is served; 0 while it is not known."""
        self.turns = Turns()
        """Of large pieces of work on the event loop."""
        self._max_bytes = config.max_body_mib << 20
        self._is_strict = config.strict
        self._max_context = max_context
        self._in_flight = BodiesInFlight(IN_FLIGHT * self._max_bytes, has_tenants=config.num_tenants > 1)
        self._burst = BurstGate()

    async def read(self, request: Request, type_: type[B], refused: Mapping[str, str]) -> tuple[B, tuple[str, ...]]:
        """The checked body, and the names of its fields that nothing reads; see `convert`."""
        exchange = exchange_of(request.scope)
        tenant, relayed = exchange.tenant, exchange.relayed
        account = BodyAccount(self._in_flight, tenant)
        try:
            data = await read_body(request, body_limits(self._max_bytes, self._max_context()), account)
            if relayed is not None:
                data, relayed.resumed = split_body(request, data)
                RELAYED.set(relayed)
            if len(data) <= LARGE_BYTES:
                if len(data) > BYTES_BEGUN:
                    await self._burst.take(tenant, len(data))
                    await look_up(request)
                body, ignored = convert(decode(data), type_, refused)
            else:
                async with self.turns.take(tenant):
                    raw = decode(data)
                    await yield_to_others()
                    body, ignored = convert(raw, type_, refused)
        finally:
            if account.num_bytes >= LARGE_BYTES:
                asyncio.get_running_loop().run_in_executor(None, trim_memory)  # which may take a while
            account.close()
        if ignored and self._is_strict:
            raise unsupported(ignored[0][:80], "nothing reads it; leave it out")
        return body, ignored


class BoundedRequest(Request):
    """A request whose body is read part by part and not kept, unless it is too long or comes too slowly."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        super().__init__(request.scope, request.receive)
        self._max_bytes = max_bytes

    async def stream(self) -> AsyncGenerator[bytes, None]:
        parts = super().stream()
        start_s = asyncio.get_running_loop().time()
        num_bytes = 0
        while True:
            try:
                async with asyncio.timeout_at(start_s + GRACE_S + num_bytes / LEAST_BYTES_PER_S):
                    part = await anext(parts, None)
            except TimeoutError:
                raise _too_slow() from None
            if part is None:
                return
            num_bytes += len(part)
            if num_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)
            yield part


def split_body(request: Request, body: bytes) -> tuple[bytes, dict[int, list[int]] | None]:
    """The client's own body, and the tokens its answer goes on after."""
    size = request.headers.get(marks.RESUME_HEADER.decode())
    if size is None:
        return body, None
    if not size.isdecimal() or len(size) > 9 or int(size) > min(len(body), MAX_RESUME_BYTES):
        raise invalid("the answer to go on with is not as long as was said", code="invalid_resume")
    try:
        return body[int(size) :], marks.resumed_tokens(body[: int(size)])
    except ValueError:
        raise invalid("the answer to go on with is no list of tokens", code="invalid_resume") from None


def decode(data: bytes) -> Any:
    """JSON, or the error that says where it is none."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise invalid("the body is nested too deeply; flatten it", code="invalid_json") from None
    except msgspec.ValidationError as error:
        raise invalid(f"the body holds a number out of range: {_plain(error)}", code="invalid_value") from None
    except ValueError as error:
        raise invalid(f"the body is not JSON: {_plain(error)}", code="invalid_json") from None


def convert(raw: Any, type_: type[B], refused: Mapping[str, str]) -> tuple[B, tuple[str, ...]]:
    """The typed body, and the names of fields it has that nothing reads.

    `refused` are known fields that are not served, with the way out.
    """
    if not isinstance(raw, dict):
        raise invalid("the body must be a JSON object", code="invalid_type")
    if len(raw) > MAX_FIELDS:
        raise _too_many()
    names = type_.__struct_encode_fields__
    for name, way_out in refused.items():
        if name not in names and raw.get(name):
            raise unsupported(name, way_out)
    try:
        body = msgspec.convert(raw, type_)
    except msgspec.ValidationError as error:
        raise _mistyped(error, raw, type_) from None
    ignored = tuple(name for name in raw if name not in names and name not in refused)
    return body, ignored


def _mistyped(error: msgspec.ValidationError, raw: dict[str, Any], type_: type) -> ApiError:
    """The type checker's complaint, with the field as OpenAI's clients expect it."""
    text = str(error)
    if (key := _KEY.search(text)) is not None:
        return invalid(f"{key[2]} has a key of more than {key[1]} characters; shorten it", key[2])
    where = _WHERE.search(text)
    path = where.group(1) if where else ""
    message = text[: where.start()] if where else text
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        name = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return invalid(f"{name} is missing; send it", name, "missing_required_parameter")
    first = _FIRST_NAME.match(path)
    param = path or None
    code = "invalid_type" if "got `" in message else "invalid_value"
    if _BEYOND.search(message) and first and isinstance(raw.get(first.group()), int | float):
        code = "decimal_above_max_value" if "<" in message else "decimal_below_min_value"
    if message.startswith("Invalid enum value"):
        message += f"; send one of {', '.join(map(repr, _allowed(type_, path)))}"
    return invalid(f"{path or 'the body'}: {message[0].lower()}{message[1:]}".replace("`", "'"), param, code)


def _allowed(type_: Any, path: str) -> list[str]:
    """Values that the types of a body name for the field at a path."""
    kinds = [type_]
    for name in re.findall(r"(?:^|\.)(\w+)", path):
        structs = [part for kind in kinds for part in _parts(kind) if isinstance(part, type(msgspec.Struct))]
        kinds = [field.type for one in structs for field in msgspec.structs.fields(one) if field.encode_name == name]
    return [value for kind in kinds for part in _parts(kind) if get_origin(part) is Literal for value in get_args(part)]


def _parts(kind: Any) -> Iterator[Any]:
    """A type and all that it is made of."""
    yield kind
    for part in get_args(kind) if get_origin(kind) is not Literal else ():
        yield from _parts(part)


def _plain(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ").replace("`", "'")[:200]


def _too_slow() -> ApiError:
    return ApiError(ErrorKind.BODY_TIMEOUT, "the body did not arrive in time; send it again", code="body_timeout")


def _too_many() -> ApiError:
    return ApiError(ErrorKind.TOO_LARGE, "the body holds too many values; send several calls", code="body_too_large")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        ErrorKind.TOO_LARGE, f"the body is larger than {max_bytes:,} bytes; send less", code="body_too_large"
    )
