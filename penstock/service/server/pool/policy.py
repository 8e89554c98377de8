"""Which models are loaded and which leave: decided from values and the time, nothing is done here.

who waits longest is loaded as soon as it fits
room is made by those nobody uses, least lately used first; a model in use is never unloaded
where that is not enough, after some patience those in use take no new requests until they have made room
a key that has had more loaded on its account than another waits before it takes a room which that other used

A load costs its seconds. It is charged to the key it is made for; that of a model that had to leave for another key's request
is charged to that other. Debts halve every minute.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.service.server.pool.resident import Residency, Resident

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


NO_DEBTS = SwitchDebts()
PATIENCE_S = 5.0
"""How long a request waits for room before models in use must yield."""


class Departure(NamedTuple):
    resident: Resident
    reason: str
    """`idle`, `damaged` or `memory`."""


class PoolPlan(NamedTuple):
    load: tuple[Resident, ...] = ()
    unload: tuple[Departure, ...] = ()
    yielding: tuple[Resident, ...] = ()
    """Models that take no new requests for now."""


def decide(
    residents: Sequence[Resident], budget_bytes: int | None, now: float, debts: SwitchDebts = NO_DEBTS
) -> PoolPlan:
    unload = [Departure(one, "damaged" if one.fault else "idle") for one in residents if one.is_over(now)]
    waiting = sorted((one for one in residents if one.wants_load(now)), key=lambda one: one.wanted_s or 0.0)
    if budget_bytes is None:
        return PoolPlan(tuple(waiting), tuple(unload))
    free = budget_bytes - sum(one.num_bytes for one in residents if one.is_in_memory)
    load: list[Resident] = []
    while waiting and waiting[0].num_bytes <= free:
        free -= waiting[0].num_bytes
        load.append(waiting.pop(0))
    missing = (waiting[0].num_bytes if waiting else 0) - free  # whoever waits behind the first does not take its room
    missing -= sum(one.num_bytes for one in residents if one.state is Residency.UNLOADING)
    missing -= sum(one.resident.num_bytes for one in unload)
    if missing <= 0:
        return PoolPlan(tuple(load), tuple(unload))
    held = {one for one in residents if waiting and _is_held(one, waiting[0], debts, now)}
    idle, busy = _candidates(residents, held | {one.resident for one in unload})
    leaving, short = _enough(idle, missing)
    if short <= 0:
        return PoolPlan(tuple(load), (*unload, *(Departure(one, "memory") for one in leaving)))
    if not waiting or not _is_urgent(waiting[0], now):
        return PoolPlan(tuple(load), tuple(unload))
    yielding, short = _enough(busy, short)
    return PoolPlan(tuple(load), tuple(unload), tuple(yielding) if short <= 0 else ())


def can_ever_fit(resident: Resident, residents: Sequence[Resident], budget_bytes: int | None) -> bool:
    """It fits beside those that never leave."""
    if budget_bytes is None:
        return True
    others = [one for one in residents if one is not resident and one.state is not Residency.FAILED]
    pinned = sum(one.num_bytes for one in others if one.is_pinned)
    return resident.num_bytes + pinned <= budget_bytes


def _is_held(resident: Resident, wanted: Resident, debts: SwitchDebts, now: float) -> bool:
    """The key that used it last is owed some peace from the key that wants the room."""
    hold_s = debts.hold_s(wanted.wanted_by, resident.used_by, now)
    waited_s = now - (now if wanted.wanted_s is None else wanted.wanted_s)
    return min(waited_s, now - resident.used_s) < hold_s


def _is_urgent(resident: Resident, now: float) -> bool:
    """An interactive request has waited long enough for models in use to make room."""
    has_people = resident.num_waiting > resident.num_patient
    return has_people and resident.wanted_s is not None and now - resident.wanted_s >= PATIENCE_S


def _candidates(residents: Sequence[Resident], leaving: set[Resident]) -> tuple[list[Resident], list[Resident]]:
    """Models that may leave now, and models in use that may leave later; least lately used first."""
    ready = [one for one in residents if one.state is Residency.READY and not one.is_pinned and one not in leaving]
    ready.sort(key=lambda one: one.used_s)
    return [one for one in ready if not one.num_uses], [one for one in ready if one.num_uses]


def _enough(candidates: Sequence[Resident], missing: int) -> tuple[list[Resident], int]:
    """As many as give so many bytes, and how many are still missing."""
    chosen: list[Resident] = []
    for one in candidates:
        if missing <= 0:
            break
        chosen.append(one)
        missing -= one.num_bytes
    return chosen, missing
