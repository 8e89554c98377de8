"""A step being put together. Laws of whole steps are in `test_scheduler`, `test_preemption` and `test_sharing`."""

from penstock.runtime.core.plan import StepPlan
from tests.core.steps import fill, make_scheduler, running


def test_the_budget_of_one_pushed_out_goes_to_others():
    """A chunk planned before its sequence had to leave counts no longer."""
    scheduler = make_scheduler()
    fill(scheduler, {}, {})
    plan = StepPlan(scheduler.limits._replace(max_batch_tokens=8), scheduler.pool, scheduler.roster)
    one, two = running(scheduler)[1, 0], running(scheduler)[2, 0]
    assert plan.add_decodes() == []
    assert plan.sequences == [one, two]
    assert [chunk.row for chunk in plan.chunks] == [one.row, two.row]
    assert plan.budget == 6
    plan.withdraw(one)
    assert plan.budget == 7
    assert plan.sequences == [two]
    assert [chunk.row for chunk in plan.chunks] == [two.row]
    plan.withdraw(one)
    assert plan.budget == 7
