"""Which models are loaded and which leave, whatever their sizes and whoever uses them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.server.pool.policy import PATIENCE_S, PoolPlan, SwitchDebts, can_ever_fit, decide
from penstock.service.server.pool.resident import Residency, Resident

NOW = 1000.0


@st.composite
def residents(draw: st.DrawFn) -> list[Resident]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        one = Resident(f"m{number}", draw(st.integers(1, 10)), is_pinned=draw(st.booleans()) and draw(st.booleans()))
        one.state = draw(st.sampled_from(Residency))
        one.is_checked = draw(st.booleans())
        one.used_s = NOW - draw(st.integers(0, 100))
        one.keep_alive_s = draw(st.sampled_from([math.inf, 0.0, 10.0, 50.0]))
        one.retry_s = NOW + draw(st.sampled_from([-1.0, 1.0]))
        if one.state is Residency.READY:
            one.num_uses = draw(st.integers(0, 2))
        elif draw(st.booleans()):
            one.num_waiting = draw(st.integers(1, 3))
            one.num_patient = draw(st.integers(0, one.num_waiting))
            one.wanted_s = NOW - draw(st.integers(0, 20))
        found.append(one)
    return found


def held(models: list[Resident]) -> int:
    return sum(one.num_bytes for one in models if one.is_in_memory)


@given(residents(), st.integers(1, 30))
def test_nothing_is_loaded_that_does_not_fit_and_nobody_loses_a_model_in_use(
    models: list[Resident], budget: int
) -> None:
    decision = decide(models, budget, NOW)
    if decision.load:
        assert held(models) + sum(one.num_bytes for one in decision.load) <= budget
    for resident, _ in decision.unload:
        assert resident.state is Residency.READY
        assert not resident.num_uses
        assert not resident.is_pinned
    assert len({id(one.resident) for one in decision.unload}) == len(decision.unload)


@given(residents(), st.integers(1, 30))
def test_room_is_made_for_somebody_and_is_enough(models: list[Resident], budget: int) -> None:
    """Nobody leaves for a load that would still not fit, and the one used least lately leaves first."""
    decision = decide(models, budget, NOW)
    evicted = [one for one, reason in decision.unload if reason == "memory"]
    if not evicted:
        return
    leaving = [one.resident for one in decision.unload]
    waiting = sorted((one for one in models if one.wants_load(NOW)), key=lambda one: one.wanted_s or 0.0)
    coming = sum(one.num_bytes for one in decision.load)
    going = sum(one.num_bytes for one in models if one.state is Residency.UNLOADING or one in leaving)
    first = next((one for one in waiting if one not in decision.load), None)
    wanted = 0 if first is None else first.num_bytes
    assert held(models) + coming - going + wanted <= budget
    idle = [one for one in models if one.state is Residency.READY and not one.num_uses and not one.is_pinned]
    stayed = [one for one in idle if one not in leaving]
    assert all(one.used_s <= other.used_s for one in evicted for other in stayed)


@given(residents())
def test_without_a_bound_whoever_is_asked_for_is_loaded(models: list[Resident]) -> None:
    decision = decide(models, None, NOW)
    assert set(decision.load) == {one for one in models if one.wants_load(NOW)}
    assert all(reason == "idle" for _, reason in decision.unload)


@given(residents(), st.integers(1, 30))
def test_who_waits_longest_is_first(models: list[Resident], budget: int) -> None:
    decision = decide(models, budget, NOW)
    waiting = sorted((one for one in models if one.wants_load(NOW)), key=lambda one: one.wanted_s or 0.0)
    assert list(decision.load) == waiting[: len(decision.load)]


def ready(name: str, size: int, **fields: float) -> Resident:
    one = Resident(name, size)
    one.state = Residency.READY
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def wanted(name: str, size: int, waited_s: float, num_patient: int = 0) -> Resident:
    one = Resident(name, size, is_checked=True)
    one.num_waiting, one.num_patient, one.wanted_s = 1, num_patient, NOW - waited_s
    return one


def test_a_model_in_use_yields_after_some_patience_but_not_to_a_batch() -> None:
    busy = ready("busy", 10, num_uses=1)
    assert decide([busy, wanted("new", 5, PATIENCE_S - 1)], 12, NOW) == PoolPlan()
    assert decide([busy, wanted("new", 5, PATIENCE_S)], 12, NOW).yielding == (busy,)
    assert decide([busy, wanted("new", 5, PATIENCE_S, num_patient=1)], 12, NOW) == PoolPlan()


def test_nobody_yields_where_that_would_not_be_enough() -> None:
    pinned = ready("pinned", 8, num_uses=1, is_pinned=True)
    busy = ready("busy", 2, num_uses=1)
    assert decide([pinned, busy, wanted("new", 5, 100.0)], 12, NOW) == PoolPlan()


def test_what_can_never_fit_is_known_before_it_is_tried() -> None:
    pinned, large = Resident("pinned", 8, is_pinned=True), Resident("large", 5)
    assert can_ever_fit(large, [pinned, large], 13)
    assert not can_ever_fit(large, [pinned, large], 12)
    assert can_ever_fit(large, [pinned, large], None)


def test_a_model_that_grew_makes_others_leave() -> None:
    old, grown = ready("old", 4, used_s=1.0), ready("grown", 9, used_s=2.0)
    assert [one.resident for one in decide([old, grown], 12, NOW).unload] == [old]


def two(now: float) -> tuple[Resident, Resident]:
    """One in memory that key `b` used just now, and one that key `a` wants; there is room for one of them."""
    used, wanted = Resident("used", 10), Resident("wanted", 10)
    used.state, used.used_by, used.used_s, used.is_checked = Residency.READY, "b", now, True
    wanted.wanted_by, wanted.wanted_s, wanted.num_waiting, wanted.is_checked = "a", now, 1, True
    return used, wanted


def test_who_switches_most_waits_longest_and_nobody_else_waits() -> None:
    debts = SwitchDebts()
    assert decide([*two(NOW)], 10, NOW + 0.1, debts).unload, "the first switch is free"
    debts.charge("a", 3.0, NOW)
    debts.charge("a", 3.0, NOW)
    used, wanted = two(NOW)
    assert not decide([used, wanted], 10, NOW + 1.0, debts).unload
    assert decide([used, wanted], 10, NOW + 30.0, debts).unload, "waiting ends"
    wanted.wanted_by = "b"
    assert decide([used, wanted], 10, NOW + 1.0, debts).unload, "nobody is held back from a room of its own"
    used.used_by, wanted.wanted_by = "a", "b"
    assert decide([used, wanted], 10, NOW + 1.0, debts).unload, "who owes less takes the room at once"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 60.0), st.floats(0.0, 30.0)), max_size=20))
def test_debts_fade_and_a_hold_is_one_sided(charges: list[tuple[str, float, float]]) -> None:
    debts, now = SwitchDebts(), NOW
    for tenant, seconds, pause_s in charges:
        debts.charge(tenant, seconds, now)
        now += pause_s
    for one in "abc":
        assert debts.of(one, now + 60.0) <= debts.of(one, now) / 2 + 1e-9
        for other in "abc":
            assert min(debts.hold_s(one, other, now), debts.hold_s(other, one, now)) == 0.0
