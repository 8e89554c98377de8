"""Orders: the first by rank is the next, nobody is lost or doubled, and tenants get their shares."""

from collections import Counter
from heapq import heapify
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.core.queue import order as order_module
from penstock.runtime.core.queue.order import ORDERS, FairQueue, Queue, by_arrival, by_deadline, by_priority
from tests.core.sequences import make_sequence

SEEDS = st.integers(0, 2**32)


def newcomers(choose: Random, num_sequences: int):
    """Sequences of several tenants, priorities and deadlines, in order of arrival."""
    return [
        make_sequence(
            number=number,
            choice=choose.randrange(3),
            n=3,
            priority=choose.randint(-2, 2),
            deadline_s=choose.choice((None, 0.0, 1.0, 2.0)),
            tenant=choose.choice("abc"),
        )
        for number in range(1, num_sequences + 1)
    ]


KEYS = {
    "first-come": lambda one: (one.number, one.choice),
    "priority": lambda one: (-one.request.priority, one.number, one.choice),
    "deadline": lambda one: (
        one.request.deadline_s is None,
        one.request.deadline_s or 0.0,
        one.number,
        one.choice,
    ),
}


@pytest.mark.parametrize("name", KEYS)
@given(seed=SEEDS)
def test_the_first_of_those_who_wait_is_next(name, seed):
    """Against a plain list, through any mix of coming, being admitted and giving up."""
    choose = Random(seed)
    order, listed, key = ORDERS[name](), [], KEYS[name]
    outside = newcomers(choose, 30)
    choose.shuffle(outside)
    while outside or listed:
        action = choose.choice(("push", "pop", "remove"))
        if action == "push" and outside:
            listed.append(outside.pop())
            order.push(listed[-1])
        elif action == "pop" and listed:
            first = min(listed, key=key)
            assert order.pop() is first
            listed.remove(first)
        elif action == "remove" and listed:
            one = listed.pop(choose.randrange(len(listed)))
            order.remove(one)
        if choose.random() < 0.7:
            assert order.peek() is min(listed, key=key, default=None)
        assert len(order) == len(listed)
        assert set(order) == set(listed)
    with pytest.raises(IndexError, match="nobody waits"):
        order.pop()


@pytest.mark.parametrize("name", ORDERS)
@given(seed=SEEDS)
def test_ranks_are_unique_and_follow_the_order(name, seed):
    sequences = newcomers(Random(seed), 20)
    order = ORDERS[name]()
    ranks = [order.rank(one) for one in sequences]
    assert len(set(ranks)) == len(ranks)
    key = KEYS.get(name, by_arrival)
    assert sorted(sequences, key=order.rank) == sorted(sequences, key=key)


def test_only_priorities_and_tenants_make_tiers():
    low, high = make_sequence(priority=-1), make_sequence(priority=2)
    assert ORDERS["priority"]().tier(low) > ORDERS["priority"]().tier(high)
    for name in ("first-come", "deadline"):
        assert ORDERS[name]().tier(low) == ORDERS[name]().tier(high)


def test_choices_of_a_request_follow_each_other():
    first, second = make_sequence(number=5, choice=0, n=2), make_sequence(number=5, choice=1, n=2)
    for rank in (by_arrival, by_priority, by_deadline):
        assert rank(first) < rank(second)


def test_no_deadline_is_the_latest_deadline():
    assert by_deadline(make_sequence(deadline_s=1e11)) < by_deadline(make_sequence())


def test_a_queue_does_not_remember_those_who_gave_up():
    """However many come and go behind a head that cannot be admitted."""
    queue = Queue(by_arrival)
    head = make_sequence()
    queue.push(head)
    for _ in range(1000):
        one = make_sequence()
        queue.push(one)
        queue.remove(one)
        assert len(queue._heap) <= 2 * len(queue) + Queue.MAX_GAPS + 1
    stayed = [make_sequence() for _ in range(200)]
    for one in stayed:
        queue.push(one)
    for one in stayed[::2] + stayed[1::4]:
        queue.remove(one)
    assert [queue.pop() for _ in range(len(queue))] == [head, *stayed[3::4]]
    assert queue.peek() is None


def test_gaps_are_closed_seldom_and_keep_the_order(monkeypatch):
    """Closing costs as much as there is, so it is done when gaps are most of it."""
    closed = []
    monkeypatch.setattr(order_module, "heapify", lambda heap: closed.append(len(heap)) or heapify(heap))
    choose = Random(5)
    queue = ORDERS["priority"]()
    sequences = [make_sequence(priority=choose.randrange(1000)) for _ in range(400)]
    for one in sequences:
        queue.push(one)
    choose.shuffle(sequences)
    for number in range(300):
        queue.remove(sequences[number])
        assert len(queue._heap) <= 2 * len(queue) + Queue.MAX_GAPS
    assert closed == [167]
    stayed = sorted(sequences[300:], key=by_priority)
    assert [queue.pop() for _ in stayed] == stayed


@pytest.mark.parametrize("name", ORDERS)
def test_whoever_was_admitted_may_wait_again(name):
    order = ORDERS[name]()
    first, second = make_sequence(), make_sequence()
    for one in (first, second):
        order.push(one)
    for _ in range(3):
        assert order.pop() is first
        order.push(first)
        assert len(order) == 2
    assert [order.pop(), order.pop()] == [first, second]
    assert order.peek() is None


# Fairness


@given(seed=SEEDS)
def test_the_tenant_served_least_is_next(seed):
    """Against plain counts, through any mix of coming, admission, giving up and service."""
    choose = Random(seed)
    order, levels, listed, present = FairQueue(), Counter(), [], 0
    outside = newcomers(choose, 30)
    inside = []
    for _ in range(90):
        action = choose.choice(("push", "pop", "remove", "charge"))
        if action == "push" and outside:
            one = outside.pop(0)
            if not any(other.request.tenant == one.request.tenant for other in listed):
                levels[one.request.tenant] = max(levels[one.request.tenant], present)
            order.push(one)
            listed.append(one)
        elif action == "pop" and listed:
            one = order.pop()
            tenant = one.request.tenant
            assert levels[tenant] == min(levels[other.request.tenant] for other in listed)
            assert one is min((other for other in listed if other.request.tenant == tenant), key=by_arrival)
            present = max(present, levels[tenant])
            listed.remove(one)
            inside.append(one)
        elif action == "remove" and listed:
            one = listed.pop(choose.randrange(len(listed)))
            order.remove(one)
        elif action == "charge" and inside:
            one, num_tokens = choose.choice(inside), choose.randrange(9)
            order.charge(one, num_tokens)
            levels[one.request.tenant] += num_tokens
        assert len(order) == len(listed)
        assert sorted(order, key=by_arrival) == sorted(listed, key=by_arrival)
        assert choose.random() < 0.3 or (order.peek() is None) == (not listed)
        for one in listed:
            assert order.tier(one) == order.level(one.request.tenant) == levels[one.request.tenant]


def serve_fairly(order, num_turns, cost=10):
    """Admit one at a time, each taking the same service; returns who was served how often."""
    served = Counter()
    for _ in range(num_turns):
        one = order.pop()
        order.charge(one, cost)
        served[one.request.tenant] += 1
    return served


def test_a_tenant_that_floods_gets_its_share():
    order = FairQueue()
    for tenant, num_requests in (("flood", 400), ("b", 20), ("c", 20), ("d", 20)):
        for _ in range(num_requests):
            order.push(make_sequence(tenant=tenant))
    assert serve_fairly(order, 80) == {"flood": 20, "b": 20, "c": 20, "d": 20}
    assert serve_fairly(order, 100) == {"flood": 100}


def test_shares_are_of_tokens_not_of_requests():
    order = FairQueue()
    for number in range(300):
        order.push(make_sequence(tenant="long" if number % 2 else "short"))
    tokens = Counter()
    for _ in range(110):
        one = order.pop()
        cost = 100 if one.request.tenant == "long" else 10
        order.charge(one, cost)
        tokens[one.request.tenant] += cost
    assert abs(tokens["long"] - tokens["short"]) <= 100


@pytest.mark.parametrize("was_known", [True, False])
def test_absence_earns_no_credit(was_known):
    order = FairQueue()
    if was_known:
        order.push(make_sequence(tenant="late"))
        serve_fairly(order, 1)
    for _ in range(200):
        order.push(make_sequence(tenant="busy"))
    serve_fairly(order, 100)
    for _ in range(100):
        order.push(make_sequence(tenant="late"))
    assert abs(serve_fairly(order, 20)["late"] - 10) <= 1


def test_a_tenant_returns_owing_what_it_owed():
    order = FairQueue()
    order.push(make_sequence(tenant="greedy"))
    order.charge(order.pop(), 100)
    for _ in range(20):
        order.push(make_sequence(tenant="greedy"))
        order.push(make_sequence(tenant="modest"))
    assert serve_fairly(order, 10) == {"modest": 10}
    assert serve_fairly(order, 10) == {"modest": 5, "greedy": 5}


def test_service_to_a_tenant_never_seen_is_counted_from_the_present():
    order = FairQueue()
    order.push(make_sequence(tenant="a"))
    order.charge(make_sequence(tenant="a"), 50)
    order.pop()
    order.charge(make_sequence(tenant="new"), 7)
    assert order.level("new") == 57
    assert order.level("unheard of") == 50


def test_a_tenant_that_comes_and_goes_leaves_nothing_behind():
    """It has one entry however often its queue empties and fills, and giving up leaves at most that one."""
    order = FairQueue()
    for _ in range(500):
        order.push(make_sequence(tenant="a"))
        serve_fairly(order, 1, cost=3)
        gone = make_sequence(tenant="b")
        order.push(gone)
        order.remove(gone)
    assert len(order._heap) <= 2
    assert order.peek() is None
    assert order._heap == []
    assert order._listed == set()
    order.push(make_sequence(tenant="a"))
    assert order.pop().request.tenant == "a"


def test_levels_of_idle_tenants_are_bounded():
    order = FairQueue()
    order.MAX_IDLE_TENANTS = 10
    for number in range(1000):
        order.push(make_sequence(tenant=f"tenant {number}"))
        serve_fairly(order, 1, cost=number)
        assert len(order._levels) <= 11
    assert order.level("tenant 999") > 900, "those served most are remembered"
    assert order.level("tenant 1") == order._present
    waits = [make_sequence(tenant=f"patient {number}") for number in range(30)]
    for one in waits:
        order.push(one)
    assert {order.pop() for _ in waits} == set(waits)


def test_of_too_many_idle_tenants_those_served_most_are_remembered():
    order = FairQueue()
    order.MAX_IDLE_TENANTS = 4
    for number, cost in enumerate((50, 20, 40, 30, 10)):
        order.push(make_sequence(tenant=f"tenant {number}"))
        serve_fairly(order, 1, cost)
    assert [order.level(f"tenant {number}") for number in range(5)] == [50, 0, 40, 0, 10]


def test_tenants_that_wait_do_not_crowd_out_those_that_do_not():
    order = FairQueue()
    order.MAX_IDLE_TENANTS = 4
    for number in range(3):
        order.push(make_sequence(tenant=f"idle {number}"))
        serve_fairly(order, 1, cost=number + 1)
    for number in range(20):
        order.push(make_sequence(tenant=f"waiting {number}"))
    assert order.pop().request.tenant == "waiting 0"
    assert [order.level(f"idle {number}") for number in range(3)] == [1, 2, 3]


def test_a_fair_queue_that_is_empty_says_so():
    order = FairQueue()
    assert order.peek() is None
    assert len(order) == 0
    with pytest.raises(IndexError, match="nobody waits"):
        order.pop()
