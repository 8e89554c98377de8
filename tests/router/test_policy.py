"""Laws of routing: only ready replicas, even loads, sessions and prefixes kept, keys that stay when replicas come and go."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CapacityError
from penstock.runtime.core.prefix import Namespace, block_hash, packed
from penstock.service.router.policy import (
    POLICIES,
    ConsistentHash,
    KvPressure,
    LeastPending,
    PowerOfTwo,
    PredictedLatency,
    PrefixPredicted,
    PrefixReported,
    PrefixTree,
    ReplicaView,
    RoundRobin,
    RoutedCall,
    SessionAffinity,
)


def idle(count, **fields):
    return [ReplicaView(f"r{number}", **fields) for number in range(count)]


def chain(*blocks):
    """Hashes of a prompt of these blocks."""
    hashes, parent = [], Namespace("", "").hash
    for block in blocks:
        parent = block_hash(parent, packed((block,)))
        hashes.append(parent)
    return tuple(hashes)


views = st.lists(
    st.builds(
        ReplicaView,
        st.just(""),
        st.integers(0, 9),
        st.integers(0, 10_000),
        st.floats(0.0, 1.0),
        st.booleans(),
        st.just(frozenset()),
        st.floats(0.0, 1.0),
    ),
    min_size=1,
    max_size=9,
)
calls = st.builds(
    RoutedCall,
    st.integers(0, 1000),
    st.sampled_from(["", "ann", "bob"]),
    st.lists(st.integers(0, 3), max_size=5).map(lambda blocks: chain(*blocks)),
    st.integers(0, 100_000),
)


@given(views=views, calls=st.lists(calls, min_size=1, max_size=8))
@pytest.mark.parametrize("name", POLICIES)
def test_only_a_ready_replica_is_chosen_and_always_the_same(name, views, calls):
    views = [view._replace(name=f"r{number}") for number, view in enumerate(views)]
    policies = [POLICIES[name](7) for _ in range(2)]
    if not any(view.is_ready for view in views):
        with pytest.raises(CapacityError, match="none of"):
            policies[0].choose(calls[0], views)
        return
    for call in calls:
        first, second = (policy.choose(call, views) for policy in policies)
        assert first == second
        assert views[first.replica].is_ready
        assert first.why
        assert 0 <= first.num_blocks <= len(call.hashes)


def test_round_robin_takes_turns_among_the_ready():
    fleet = idle(3)
    fleet[1] = fleet[1]._replace(is_ready=False)
    assert [RoundRobin().choose(RoutedCall(number), fleet).replica for number in range(4)] == [0, 2, 0, 2]


@given(views=views, number=st.integers(0, 100))
def test_least_pending_is_least_and_takes_turns_among_equals(views, number):
    ready = [view.num_pending for view in views if view.is_ready]
    if ready:
        assert views[LeastPending().choose(RoutedCall(number), views).replica].num_pending == min(ready)
    assert [LeastPending().choose(RoutedCall(number), idle(3)).replica for number in range(4)] == [0, 1, 2, 0]


def test_two_choices_are_far_more_even_than_one():
    """Throwing as many balls as bins ten times over: the fullest bin has hardly more than the mean."""
    policy, counts = PowerOfTwo(3), [0] * 50
    for number in range(500):
        fleet = [ReplicaView(f"r{index}", count) for index, count in enumerate(counts)]
        counts[policy.choose(RoutedCall(number), fleet).replica] += 1
    assert max(counts) <= 13
    assert min(counts) >= 6


@pytest.mark.parametrize("policy", [SessionAffinity(), ConsistentHash(max_lead=None)])
def test_keys_stay_when_a_replica_joins_or_leaves(policy):
    keys = [RoutedCall(number, session=f"user {number}") for number in range(400)]
    small, large = idle(7), idle(8)

    def homes(fleet):
        return [fleet[policy.choose(call, fleet).replica].name for call in keys]

    before, after = homes(small), homes(large)
    moved = [new for old, new in zip(before, after) if old != new]
    assert set(moved) == {"r7"}
    assert len(moved) == pytest.approx(400 / 8, rel=0.5)
    assert homes(list(reversed(large))) == after
    assert min(Counter(after).values()) > 15


def test_a_session_stays_and_moves_only_when_its_replica_is_not_ready():
    policy, fleet = SessionAffinity(), idle(5)
    home = policy.choose(RoutedCall(0, "ann"), fleet).replica
    busy = [view._replace(num_pending=9) if index == home else view for index, view in enumerate(fleet)]
    assert policy.choose(RoutedCall(1, "ann"), busy).replica == home
    away = [view._replace(is_ready=index != home) for index, view in enumerate(fleet)]
    assert policy.choose(RoutedCall(2, "ann"), away).replica != home
    assert policy.choose(RoutedCall(3), busy).replica != home


def test_a_hot_key_spills_over_to_the_next_on_the_ring():
    policy, fleet = ConsistentHash(max_lead=1.25), idle(4)
    call = RoutedCall(0, hashes=chain(1, 2))
    home = policy.choose(call, fleet).replica
    full = [view._replace(num_pending=10 if index == home else 1) for index, view in enumerate(fleet)]
    choice = policy.choose(call, full)
    assert choice.replica != home
    assert fleet[home].name in choice.why


def test_reported_prefixes_attract_until_their_holder_is_far_busier():
    call = RoutedCall(0, hashes=chain(1, 2, 3))
    fleet = idle(3)
    fleet[1] = fleet[1]._replace(prefixes=frozenset(call.hashes[:2]), num_pending=5)
    fleet[2] = fleet[2]._replace(prefixes=frozenset(call.hashes[2:]))
    choice = PrefixReported(max_lead=8).choose(call, fleet)
    assert (choice.replica, choice.num_blocks) == (1, 2)
    assert "2 of 3" in choice.why
    assert PrefixReported(max_lead=4).choose(call, fleet).replica != 1


def test_a_small_part_of_a_prompt_draws_less_than_the_whole():
    call = RoutedCall(0, hashes=chain(*range(16)))
    fleet = idle(2)
    for num_held, num_pending, chosen in ((16, 8, 1), (16, 9, 0), (8, 4, 1), (8, 5, 0), (1, 0, 1), (1, 1, 0)):
        fleet[1] = fleet[1]._replace(prefixes=frozenset(call.hashes[:num_held]), num_pending=num_pending)
        assert PrefixReported(max_lead=8).choose(call, fleet).replica == chosen


def test_predicted_prefixes_follow_their_own_choices_and_forget_the_oldest():
    policy, fleet = PrefixPredicted(max_blocks=6), idle(4)
    home = policy.choose(RoutedCall(2, hashes=chain(1, 2, 3)), fleet)
    assert home.num_blocks == 0
    again = policy.choose(RoutedCall(3, hashes=chain(1, 2, 9)), fleet)
    assert (again.replica, again.num_blocks) == (home.replica, 2)
    for number in range(4):
        policy.choose(RoutedCall(number, hashes=chain(100 + number, 200 + number)), fleet)
    assert policy.choose(RoutedCall(9, hashes=chain(1, 2, 3)), fleet).num_blocks == 0


def test_a_tree_remembers_what_was_sent_of_late_and_no_more_than_it_may():
    """The latest half is there, a prefix as long as what follows it, nothing beyond the bound."""
    rng, tree, sent = random.Random(3), PrefixTree(64), []
    for _ in range(300):
        name, start = rng.choice("ab"), rng.randrange(100)
        hashes = [b"%d/%d" % (start, place) for place in range(rng.randrange(1, 6))]
        tree.add(name, hashes)
        sent.append((name, hashes))
        latest = set()
        for one, those in reversed(sent):
            latest |= {(one, hash_) for hash_ in those}
            if len(latest) > 32:
                break
            assert tree.num_held(one, those) == len(those)
        asked = [(one, b"%d/%d" % (each, place)) for one in "ab" for each in range(100) for place in range(6)]
        held = {pair for pair in asked if tree.num_held(pair[0], [pair[1]])}
        assert len(held) < 64 + 6
        for one, hash_ in held:
            head, _, place = hash_.partition(b"/")
            assert all((one, head + b"/%d" % before) in held for before in range(int(place)))


def test_kv_pressure_goes_where_the_cache_is_emptiest_and_of_equals_where_least_is_pending():
    fleet = [ReplicaView("a", 0, 0, 0.9), ReplicaView("b", 5, 0, 0.31), ReplicaView("c", 4, 0, 0.35)]
    assert KvPressure().choose(RoutedCall(0), fleet).replica == 2


def test_predicted_latency_weighs_what_waits_against_what_is_cached_and_how_fast_each_is():
    policy = PredictedLatency()
    hashes = chain(*range(10))
    call = RoutedCall(0, "", hashes, 1000)
    fleet = [ReplicaView("a", 0, 0, token_s=1e-4), ReplicaView("b", 0, 0, token_s=1e-4)]
    first = policy.choose(call, fleet)
    assert (first.replica, first.num_blocks) == (0, 0)
    again = policy.choose(call, fleet)
    assert (again.replica, again.num_blocks) == (0, 10)
    crowded = [fleet[0]._replace(num_waiting_tokens=5000), fleet[1]]
    assert policy.choose(call, crowded).replica == 1
    slow = [ReplicaView("c", token_s=1e-2), ReplicaView("d", num_waiting_tokens=2000, token_s=1e-4)]
    assert policy.choose(call._replace(hashes=()), slow).replica == 1
