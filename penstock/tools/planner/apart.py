"""Prompts computed apart from answers, on the same devices: what that gives, and whether it pays.

Prompts are handed over by the router's own rule, which the simulator follows.
"""

from penstock.tools.cost.hardware import Link
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.capacity import CapacityTrial, serve
from penstock.tools.planner.demand import Demand, SloTarget
from penstock.tools.sim.handover import Disaggregation

NOTABLE = 0.02
"""Of a time: less is no difference."""
NOTABLE_GOOD = 0.005
"""Of all requests, likewise."""


def try_apart(
    candidate: Candidate, demand: Demand, target: SloTarget, num_copies: int
) -> tuple[int, CapacityTrial] | None:
    """The best number of copies that compute prompts alone, and its run; None where there is but one copy."""
    link, count = candidate.hardware.network, candidate.num_devices // candidate.num_copies
    link = Link(link.kind, count * link.bandwidth_bytes_per_s, link.latency_s)  # every device sends its own share
    kv_bytes = candidate.spec.kv_bytes_per_token(candidate.precision.kv_bytes)
    found = []
    for num_prefill in sorted({1, num_copies // 3, num_copies // 2} & set(range(1, num_copies))):
        split = Disaggregation(num_prefill, link, kv_bytes, follows_rule=True)
        found.append((num_prefill, serve(candidate, demand, target, demand.rate, num_copies, split)))
    return max(found, key=lambda one: (one[1].good_fraction, -one[1].summary.e2e.p95), default=None)


def judge_apart(apart: CapacityTrial, together: CapacityTrial) -> str:
    """Whether it pays, and why."""
    more = apart.good_fraction - together.good_fraction
    if more > NOTABLE_GOOD:
        return f"pays: {100 * more:.1f} % more requests are good"
    new, old = apart.summary, together.summary
    pairs = (new.ttft, old.ttft), (new.tpot, old.tpot)
    first, each = (after.p95 / before.p95 - 1.0 if before.p95 else 0.0 for after, before in pairs)
    times = f"TTFT p95 {100 * first:+.0f} %, TPOT p95 {100 * each:+.0f} %"
    if more < -NOTABLE_GOOD:
        return f"does not pay: {-100 * more:.1f} % fewer requests are good; {times}"
    if min(first, each) < -NOTABLE and max(first, each) <= NOTABLE:
        return f"pays: {times}"
    if not apart.result.num_transfers:
        return "does not pay: by the router's rule no prompt would be handed over"
    return f"does not pay: {times}"
