"""Steps on their way know whom they compute, and who has left since."""

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.flights import Flights
from tests.core.sequences import make_sequence


def make_batch(flights: Flights, sequences, last_epoch=0, **rest) -> Batch:
    chunks = tuple(Chunk(row, 0, 1, (), (), True, None) for row, _ in enumerate(sequences))
    return Batch(flights.launch(sequences, last_epoch), chunks, **rest)


def test_steps_are_numbered_and_land_in_any_order():
    flights = Flights()
    one, two = make_sequence(), make_sequence()
    first, second = make_batch(flights, [one, two]), make_batch(flights, [two], 7)
    assert (first.step, second.step) == (1, 2)
    assert flights.sequences(first) == (one, two)
    assert flights.land(second.step) == ([two], 7)
    assert len(flights) == 1


def test_whoever_left_is_not_live_though_it_came_back():
    flights = Flights()
    one, two = make_sequence(), make_sequence()
    for row, sequence in enumerate((one, two)):
        sequence.enter(row, 0, epoch=row + 1)
    batch = make_batch(flights, [one, two], last_epoch=2)
    assert flights.live(batch) == (0, 1)
    one.leave()
    assert flights.live(batch) == (1,)
    one.enter(0, 0, epoch=3)
    assert flights.live(batch) == (1,)
