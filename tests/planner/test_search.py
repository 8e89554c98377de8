"""Laws of the search: what is ranked first is cheapest, what limits is said with evidence, fronts are fronts."""

import pytest

from penstock.metrics.summary import Slo
from penstock.runtime.models import catalog
from penstock.tools.cost.hardware import find
from penstock.tools.planner.apart import judge_apart, try_apart
from penstock.tools.planner.capacity import Loads, find_capacity, serve
from penstock.tools.planner.constraint import find_constraint, moments
from penstock.tools.planner.demand import SloTarget
from penstock.tools.planner.money import Assumptions
from penstock.tools.planner.search import Search
from penstock.tools.planner.space import SearchSpace, explore, layouts
from penstock.tools.planner.steady import bound
from tests.planner.candidates import TARGET, make_candidate, make_demand

DEMAND = make_demand(rate=300.0)


def search(*devices, prices=None, gaps_of=lambda candidate: (), **rest):
    search_space = SearchSpace(tuple(find(name) for name in devices), **rest)
    return Search(TARGET, search_space, prices or {}, Assumptions(), gaps_of)


def plan(found, demand=DEMAND, model="smollm2-135m"):
    return found.plan(*explore(catalog.find(model), found.search_space, demand, TARGET.slo), demand)


@pytest.fixture(scope="module")
def reported():
    return plan(search("l4", "t4", prices={"l4": 1.0, "t4": 0.1}, weights=("fp16",), kv=("fp16",), max_devices=1))


def test_the_cheapest_fleet_that_carries_the_load_comes_first(reported):
    costs = [option.hourly for option in reported.options]
    assert costs == sorted(costs)
    for option in reported.options:
        assert (
            (option.num_replicas - 1) * option.replica_rate < DEMAND.rate <= option.num_replicas * option.replica_rate
        )


def test_the_chosen_one_is_told_in_full(reported):
    assert reported.chosen is not None
    assert reported.at_load is not None
    assert reported.at_load.rate == DEMAND.rate
    assert reported.cost is not None
    *others, apart = reported.what_ifs
    assert [one.words for one in others] == [
        "twice the traffic",
        "one device less",
        "no cache hits",
        "prompts twice as long",
    ]
    assert apart.consequence.startswith(("pays: ", "does not pay: "))
    assert reported.constraint is not None


def test_no_point_of_the_front_beats_another_in_both(reported):
    front = reported.pareto
    assert front
    for one in front:
        for other in front:
            beats = (
                one.tokens_per_s_per_device >= other.tokens_per_s_per_device
                and one.tokens_per_s_per_user >= other.tokens_per_s_per_user
            )
            assert one is other or not beats


def test_what_runs_today_is_chosen_before_what_is_cheaper():
    def gaps_of(candidate):
        return ("nobody built it",) if candidate.kv == "fp8" else ()

    found = plan(search("l4", gaps_of=gaps_of, weights=("bf16",), max_devices=1))
    assert found.chosen is not None
    assert found.chosen.candidate.kv == "bf16"


def test_what_does_not_fit_is_left_out_with_its_ledger():
    found = plan(search("t4", weights=("fp16",), kv=("fp16",)), model="llama-3.1-405b")
    assert found.chosen is None
    assert found.options == ()
    assert all("no memory is left" in one.reason for one in found.rejected)


def test_layouts_cut_the_model_evenly():
    """9 heads cannot be cut by 2; 64 can be cut by 8, and no group leaves its machine."""
    assert {layout.tensor for layout in layouts(catalog.find("smollm2-135m"), find("h100"), 8)} == {1}
    assert {layout.tensor for layout in layouts(catalog.find("llama-3-70b"), find("h100"), 8)} == {1, 2, 4, 8}
    shapes = list(layouts(catalog.find("deepseek-v3"), find("h100"), 16))
    assert all(layout.num_devices <= 16 and layout.tensor <= 8 for layout in shapes)
    assert any(layout.expert == 16 and layout.data == 2 for layout in shapes)


def judged(candidate, demand, target):
    capacity = find_capacity(Loads(candidate, demand, target, lambda: None))
    steady = bound(candidate, demand.sizes, target.slo)
    return find_constraint(candidate, capacity, steady, demand.sizes, target), capacity


def test_too_few_rows_are_named_and_more_of_them_help():
    constraint, _ = judged(make_candidate(max_sequences=2), make_demand(answers=(40, 80)), SloTarget(Slo(ttft_s=0.1)))
    assert constraint.kind == "sequences"
    assert "2 sequences at once" in constraint.words
    assert constraint.remedy is not None
    assert constraint.remedy.max_sequences == 8


def test_too_few_blocks_are_named_with_the_share_of_moments():
    """A 3B model in 16 bits leaves an L4 room for a few thousand-token prompts at a time."""
    candidate = make_candidate("phi-3-mini", device="l4", max_sequences=64, max_batch_tokens=2048, kv="bf16")
    demand = make_demand(prompts=(1500, 2500), answers=(100, 200))
    constraint, capacity = judged(candidate, demand, SloTarget(Slo(ttft_s=20.0)))
    assert constraint.kind == "kv"
    assert constraint.remedy is not None
    assert constraint.remedy.kv == "fp8"
    if capacity.beyond is not None:
        assert moments(capacity.beyond, candidate).blocks > 0.1


def test_late_first_tokens_are_the_prompts_fault():
    constraint, _ = judged(
        make_candidate(), make_demand(prompts=(600, 1000), answers=(2, 4)), SloTarget(Slo(ttft_s=0.1))
    )
    assert constraint.kind == "prompts"


def test_slow_steps_are_taken_apart():
    candidate = make_candidate("llama-3.1-8b", device="h100", max_sequences=256, max_batch_tokens=2048)
    constraint, _ = judged(candidate, make_demand(answers=(30, 60)), SloTarget(Slo(ttft_s=5.0, tpot_s=0.0075)))
    assert constraint.kind == "steps"
    assert "weights of layers" in constraint.words


def test_what_is_too_slow_alone_says_so():
    constraint, _ = judged(make_candidate(), make_demand(), SloTarget(Slo(ttft_s=1e-6)))
    assert constraint.kind == "latency"
    assert "with no other request" in constraint.words


def test_computing_prompts_apart_is_said_to_pay_only_where_it_does():
    """Judged against the same engines without: more good requests, or sooner tokens and no later first ones."""
    chosen = plan(search("l4", weights=("bf16",), kv=("bf16",), max_devices=1)).chosen
    assert chosen is not None
    target = search("l4").target
    together = serve(chosen.candidate, DEMAND, target, DEMAND.rate, 4)
    found = try_apart(chosen.candidate, DEMAND, target, 4)
    assert found is not None
    num_prefill, apart = found
    assert 1 <= num_prefill <= 2
    assert len(apart.result.replicas) == 4, "the same number of engines"
    words = judge_apart(apart, together)
    more = apart.good_fraction - together.good_fraction
    assert words.startswith("pays") == (
        more > 0.005
        or (more >= -0.005 and apart.summary.tpot.p95 < 0.98 * together.summary.tpot.p95
            and apart.summary.ttft.p95 <= 1.02 * together.summary.ttft.p95)
        or (more >= -0.005 and apart.summary.ttft.p95 < 0.98 * together.summary.ttft.p95
            and apart.summary.tpot.p95 <= 1.02 * together.summary.tpot.p95)
    )  # fmt: skip
    assert try_apart(chosen.candidate, DEMAND, target, 1) is None
