"""The requests that were turned away lately: when, with which status, and why. Never what they asked for."""

from collections import deque
from typing import Any, NamedTuple

MAX_KEPT = 200
MAX_MESSAGE = 240
OWN_PREFIXES = ("/app/", "/assets/")
"""What the web app asks for itself is no client's request."""


class RefusalRecord(NamedTuple):
    number: int
    time_s: float
    """On the wall's clock."""
    status: int
    code: str
    message: str
    path: str
    tenant: str
    call_id: str


class RefusalLog:
    """Lives on the server's event loop."""

    def __init__(self) -> None:
        self.num_refused = 0
        self._kept: deque[RefusalRecord] = deque(maxlen=MAX_KEPT)

    def note(self, scope: Any, status: int, message: str, code: str, time_s: float) -> None:
        path = scope["path"]
        if path.startswith(OWN_PREFIXES):
            return
        self.num_refused += 1
        tenant, call_id = scope.get("penstock.tenant", ""), scope.get("penstock.request_id", b"").decode()
        shown = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."
        self._kept.append(RefusalRecord(self.num_refused, time_s, status, code, shown, path[:80], tenant, call_id))

    def since(self, number: int, tenant: str | None) -> list[dict[str, Any]]:
        """Refusals after that number that a tenant may see, None for everybody's."""
        return [one._asdict() for one in self._kept if one.number > number and (tenant is None or one.tenant == tenant)]
