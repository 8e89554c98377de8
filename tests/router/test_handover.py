"""The rule by which prompts are handed over: whoever waits less, by what is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.kv_events import BlockOffer, read_offer
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.handover import (
    PromptSite,
    RoleLoad,
    Transfer,
    judge_handover,
    waiting_cost,
    wanted_prefills,
)
from penstock.service.router.proxy.roles import RoleTuner

FAST = Transfer(token_s=1e-6)
COUNTS = st.integers(0, 100_000)
PACES = st.floats(1e-6, 1e-1)


def test_a_prompt_is_moved_where_it_would_hold_up_answers() -> None:
    here = there = PromptSite(4000, 0, 1e-3)
    assert not judge_handover(here, there, FAST, 0).is_moved
    assert judge_handover(here, there, FAST, 4).is_moved
    assert judge_handover(here._replace(num_waiting=4000), there, FAST, 0).is_moved


@pytest.mark.parametrize(
    ("here", "there", "transfer", "why"),
    [
        (PromptSite(10, 0, 1e-3), PromptSite(4000, 0, 1e-3), FAST, "its blocks are here"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 0, 1e-3), FAST._replace(is_shared=True), "both share a device"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 0, 1e-3), Transfer(1e-1), "the transfer takes longer"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 90_000, 1e-3), FAST, "it waits longer there"),
    ],
)
def test_the_rule_says_why_it_does_not_pay(here: PromptSite, there: PromptSite, transfer: Transfer, why: str) -> None:
    verdict = judge_handover(here, there, transfer, 8)
    assert (verdict.is_moved, verdict.why) == (False, why)


def test_before_anything_is_measured_it_is_tried() -> None:
    assert judge_handover(PromptSite(4000), PromptSite(4000), FAST, 0).is_moved


@given(COUNTS, COUNTS, COUNTS, COUNTS, PACES, PACES, st.integers(0, 200))
def test_more_answers_in_progress_never_bring_a_prompt_back(
    mine: int, my_queue: int, theirs: int, their_queue: int, my_pace: float, their_pace: float, num_running: int
) -> None:
    here, there = PromptSite(mine, my_queue, my_pace), PromptSite(theirs, their_queue, their_pace)
    if judge_handover(here, there, FAST, num_running).is_moved:
        assert judge_handover(here, there, FAST, num_running + 1).is_moved
        assert judge_handover(here, there._replace(num_waiting=0), FAST, num_running).is_moved


def test_an_offer_is_read_as_it_was_written() -> None:
    offer = BlockOffer("prefill", 4000, "0" * 32, 65_536, 16, "cuda:0", 1234.5, 1e9)
    assert read_offer(offer.encode()) == offer
    for nonsense in (b"", b"prefill", b"prefill x 0 1 2 cpu 0 0", b"\xff", offer.encode() + b" 1"):
        assert read_offer(nonsense) is None


LOADS = st.builds(
    RoleLoad, st.integers(2, 12), st.floats(0, 12), st.floats(0, 500), st.floats(0, 12), st.floats(0, 4), st.booleans()
)


@given(LOADS, st.integers(0, 11))
def test_another_number_of_prefill_replicas_is_wanted_only_where_clients_wait_much_less(
    load: RoleLoad, now: int
) -> None:
    now = min(now, load.num_replicas - 1)
    wanted = wanted_prefills(load, now)
    assert 0 <= wanted < load.num_replicas
    assert wanted == now or waiting_cost(load, wanted) < waiting_cost(load, now)
    assert wanted_prefills(load, wanted) == wanted, "what was changed is not changed back by the same load"


def test_prefill_replicas_come_with_long_prompts_beside_answers_and_go_without_them() -> None:
    busy = RoleLoad(4, prompt_s=0.8, num_answers=60)
    assert wanted_prefills(busy, 0) >= 1
    assert wanted_prefills(busy._replace(num_answers=0), 1) == 0
    assert wanted_prefills(busy._replace(is_shared=True), 0) == 0, "on one device nothing is gained"
    assert wanted_prefills(busy._replace(kv_fraction=3.9), 0) == 0, "answers need the memory of all"


def offering(name: str, fleet: LiveFleet, host: str = "127.0.0.1", device: str | None = None) -> LiveReplica:
    replica = fleet.add(name, f"http://{host}:1")
    fleet.set_state(replica, ReplicaState.READY, 0.0)
    fleet.learn_offer(replica, BlockOffer("both", 4000, "0" * 32, 65_536, 16, device or name, 4000.0, 1e9))
    return replica


def test_a_replica_gets_its_role_when_what_it_was_doing_has_ended() -> None:
    fleet = LiveFleet()
    first, second = offering("a", fleet), offering("b", fleet)
    fleet.begin(first, 10, 1.0)
    fleet.assign(first, "prefill")
    assert first.is_turning
    assert not fleet.takes(first, 2.0)
    assert [view.is_ready for view in fleet.views([first, second], 2.0)] == [False, True]
    fleet.end(first, True, 10, 3.0)
    assert fleet.takes(first, 4.0)
    assert (first.role, first.only_prefills) == ("prefill", True)
    assert [view.is_ready for view in fleet.views([first, second], 4.0)] == [False, True]
    fleet.assign(first, "both")
    assert [view.is_ready for view in fleet.views([first, second], 5.0)] == [True, True]


def test_roles_follow_the_load_one_replica_at_a_time() -> None:
    fleet = LiveFleet()
    replicas = [offering(name, fleet) for name in "abcd"]
    tuner = RoleTuner(fleet, period_s=10.0)
    for replica in replicas:
        for _ in range(16):
            fleet.begin(replica, 0, 0.0)
    for second in range(12):
        tuner.note("", 0.8, float(second))
    turning = [one for one in replicas if one.is_turning]
    assert len(turning) == 1
    for second in range(12, 40):
        tuner.note("", 0.8, float(second))
    assert [one for one in replicas if one.role == "prefill"] == turning, "no other while one still answers"
    for _ in range(16):
        fleet.end(turning[0], True, 0, 40.0)
    assert turning[0].only_prefills
    for replica in replicas:
        while replica.num_pending:
            fleet.end(replica, True, 0, 41.0)
    for second in range(41, 200):
        tuner.note("", 0.001, float(second))
    assert not [one for one in replicas if one.only_prefills], "nothing is delayed any more"


@pytest.mark.parametrize("hosts", [("one", "one", "one"), ("one", "two", "three")])
def test_devices_of_one_name_on_several_machines_are_several(hosts: tuple[str, ...]) -> None:
    """Where all replicas compute on one device, nobody gains by another role."""
    fleet = LiveFleet()
    replicas = [offering(name, fleet, host, "cuda:0") for name, host in zip("abc", hosts, strict=True)]
    tuner = RoleTuner(fleet, period_s=10.0)
    for replica in replicas:
        for _ in range(16):
            fleet.begin(replica, 0, 0.0)
    for second in range(12):
        tuner.note("", 0.6, float(second))
    assert sum(one.role == "prefill" for one in replicas) == (len(set(hosts)) > 1)
