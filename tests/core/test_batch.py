"""What is made in a hurry is what its class makes."""

from tests.core.steps import fill, make_scheduler, output_of


def assert_whole(value) -> None:
    assert type(value)(*value) == value


def test_values_made_by_steps_have_all_their_fields():
    scheduler = make_scheduler()
    fill(scheduler, {}, {})
    assert_whole(scheduler.load)
    for now in range(3):
        batch = scheduler.schedule(float(now))
        deltas = scheduler.commit(batch, output_of(batch), float(now))
        assert len(batch.chunks) == len(deltas) == 2
        for value in (batch, *batch.chunks, *deltas, scheduler.load):
            assert_whole(value)
