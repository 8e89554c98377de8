"""What keys owe one another for models that were loaded on their account: whoever switches most waits longest.

A load costs its seconds. It is charged to the key it is made for; that of a model that had to leave for another key's request
is charged to that other. Debts halve every minute.
"""

import math

HALF_LIFE_S = 60.0
HOLD = 4.0
"""Seconds that a key waits before it takes a room from another that owes less, for each second it owes more."""


class SwitchDebts:
    def __init__(self) -> None:
        self._owed: dict[str, tuple[float, float]] = {}
        """Seconds owed, and when that was so."""

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        self._owed[tenant] = (self.of(tenant, now) + seconds, now)
        self._owed = {name: owed for name, owed in self._owed.items() if self.of(name, now) > seconds / 1000}

    def of(self, tenant: str, now: float) -> float:
        seconds, since_s = self._owed.get(tenant, (0.0, now))
        return seconds * math.exp2((since_s - now) / HALF_LIFE_S)

    def hold_s(self, tenant: str, other: str, now: float) -> float:
        """How long a request of one key waits for a room that the other used."""
        return 0.0 if tenant == other else HOLD * max(self.of(tenant, now) - self.of(other, now), 0.0)
