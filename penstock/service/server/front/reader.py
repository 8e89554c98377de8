"""Bodies of requests: read within bounds of memory and time, large ones in turns, and made the type a route expects."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request

from penstock.config import ServerConfig
from penstock.service.edge.bodies import IN_FLIGHT, BodiesInFlight
from penstock.service.edge.memory import LARGE_BYTES
from penstock.service.server.http.body import (
    BodyLimits,
    body_limits,
    convert,
    decode,
    look_up,
    open_account,
    parse,
    read_body,
)
from penstock.service.server.http.connection import exchange_of
from penstock.service.server.http.faults import unsupported
from penstock.service.server.http.large import BYTES_BEGUN, BurstGate, Turns, yield_to_others
from penstock.service.server.http.relay import RELAYED, relayed_of, split_body
from penstock.service.server.served import MAX_CHARACTERS_PER_TOKEN, ServedModels

B = TypeVar("B", bound=Struct)


class BodyReader:
    """Shared by all requests: bodies in flight are counted together, and bursts begin over several turns of the loop."""

    def __init__(self, models: ServedModels, config: ServerConfig) -> None:
        self.turns = Turns()
        """Of large pieces of work on the event loop."""
        self._models = models
        self._max_bytes = config.max_body_mib << 20
        self._is_strict = config.strict
        self._in_flight = BodiesInFlight(IN_FLIGHT * self._max_bytes, has_tenants=config.num_tenants > 1)
        self._burst = BurstGate()

    async def read(self, request: Request, type_: type[B], refused: Mapping[str, str]) -> tuple[B, tuple[str, ...]]:
        """The checked body, and the names of its fields that nothing reads. `refused`: known fields that are not served, with
        the way out."""
        tenant = exchange_of(request.scope).tenant
        with open_account(self._in_flight, tenant) as account:
            data = await read_body(request, self.limits, account)
            relayed = relayed_of(request)
            if relayed is not None:
                data, relayed.resumed = split_body(request, data)
                RELAYED.set(relayed)
            if len(data) <= LARGE_BYTES:
                if len(data) > BYTES_BEGUN:
                    await self._burst.take(tenant, len(data))
                    await look_up(request)
                body, ignored = parse(data, type_, refused)
            else:
                async with self.turns.take(tenant):
                    raw = decode(data)
                    await yield_to_others()
                    body, ignored = convert(raw, type_, refused)
        if ignored and self._is_strict:
            raise unsupported(ignored[0][:80], "nothing reads it; leave it out")
        return body, ignored

    @property
    def limits(self) -> BodyLimits:
        known, max_context = self._models.known, self._models.longest_context
        if not known or not all(model.max_context for model in known):  # of a model never loaded it may be unknown
            return BodyLimits(self._max_bytes)
        return body_limits(self._max_bytes, max_context * MAX_CHARACTERS_PER_TOKEN, max_context)
