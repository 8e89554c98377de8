"""The states kept of a row are those that its last steps left, for as far back as they are kept."""

import random

import torch

from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.execution.heads.states import KEPT, MAX_ROWS, StateStore

SIZE = 4


def state(row: int, position: int, version: int) -> list[float]:
    return [float(row), float(position), float(version), 1.0]


def chunk(row: int, start: int, length: int, *, arrives: bool) -> Chunk:
    arrival = Arrival(SamplingParams(), 0, 1, (), "") if arrives else None
    return Chunk(row, start, length, (), (), samples=True, arrival=arrival)


def test_what_is_kept_is_what_the_last_steps_left() -> None:
    """Whatever the lengths of chunks, however many drafts were refused, whoever takes over a row."""
    choose = random.Random(3)
    store = StateStore(SIZE, torch.device("cpu"))
    told: dict[int, dict[int, list[float]]] = {}
    for step in range(400):
        chunks, states = [], []
        for row in choose.sample(range(5), choose.randint(1, 4)):
            arrives = row not in told or choose.random() < 0.02
            known = {} if arrives else told[row]
            end = max(known, default=-1) + 1
            start = choose.randint(0, 30) if arrives else max(end - choose.randint(0, 3), min(known))
            length = choose.choice((1, 1, 2, 5, 40, KEPT + 9))
            told[row] = {at: each for at, each in known.items() if at < start}
            told[row] |= {at: state(row, at, step) for at in range(start, start + length)}
            chunks.append(chunk(row, start, length, arrives=arrives))
            states += [state(row, at, step) for at in range(start, start + length)]
        store.put(chunks, torch.tensor(states))
        for row, known in told.items():
            end = max(known) + 1
            begin = store.begin(row)
            assert begin is not None
            assert begin <= max(end - KEPT // 2, min(known))
            found = store.at(row, begin, end)
            assert found is not None
            assert found.tolist() == [known[at] for at in range(begin, end)]
            assert store.at(row, begin, end + 1) is None
            assert store.at(row, begin - 1, end) is None


def test_rows_that_computed_last_are_kept() -> None:
    store = StateStore(SIZE, torch.device("cpu"))
    for row in range(MAX_ROWS + 1):
        store.put([chunk(row, 0, 1, arrives=True)], torch.tensor([state(row, 0, 0)]))
    assert store.begin(0) is None
    assert [store.begin(row) for row in range(1, MAX_ROWS + 1)] == [0] * MAX_ROWS
