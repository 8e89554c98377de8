"""Bytes of bodies that are here at a time, by tenant and in all: what is beyond is refused, not kept."""

from dataclasses import dataclass

from penstock.service.edge.refusal import unavailable

IN_FLIGHT = 4
"""Bodies of the largest size that may be on their way at a time, all clients together."""


class BodiesInFlight:
    """No tenant of several may have over half."""

    def __init__(self, max_bytes: int, *, has_tenants: bool) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._share = max_bytes // 2 if has_tenants else max_bytes
        self._by_tenant: dict[str, int] = {}

    def add(self, tenant: str, num_bytes: int) -> None:
        """Raises Refusal where there is no room."""
        all_, own = self.num_bytes + num_bytes, self._by_tenant.get(tenant, 0) + num_bytes
        if all_ > self._max_bytes or own > self._share:
            raise unavailable("too many large bodies are on their way; try again in a moment", 1)
        self.num_bytes, self._by_tenant[tenant] = all_, own

    def remove(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        left = self._by_tenant.pop(tenant) - num_bytes
        if left:
            self._by_tenant[tenant] = left


@dataclass(slots=True, eq=False)
class BodyAccount:
    """What one body has taken so far; `close` gives it back, once or more. Then it may be another body's."""

    _bodies: BodiesInFlight
    tenant: str = ""
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        self._bodies.add(self.tenant, num_bytes)
        self.num_bytes += num_bytes

    def close(self) -> None:
        if self.num_bytes:
            self._bodies.remove(self.tenant, self.num_bytes)
            self.num_bytes = 0
