"""Rows of pinned memory: lent to records, free again with their last reference. Pinning itself needs a GPU."""

from typing import Any

import pytest
import torch

from penstock.runtime.execution.cuda import copies
from penstock.runtime.execution.cuda.copies import PinnedRows, cut


@pytest.fixture
def rows(monkeypatch: Any) -> PinnedRows:
    empty = torch.empty
    monkeypatch.setattr(copies, "SLAB_BYTES", 40)
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory, **options: empty(*shape, **options))
    return PinnedRows(7, 10)


def test_a_row_is_free_again_when_nobody_refers_to_it(rows: PinnedRows) -> None:
    taken = rows.take(9)
    assert taken == [0, 1, 2, 3, 4, 5, 6]
    staged = torch.arange(70, dtype=torch.uint8).view(7, 10)
    rows.fill(taken, staged)
    lent = [rows.lend(row) for row in taken]
    assert [bytes(each) for each in lent] == [bytes(row.tolist()) for row in staged]
    assert rows.take(1) == []
    part = lent[2][3:5]
    del lent[5], lent[2]
    assert rows.take(9) == [5]
    assert bytes(part) == bytes([23, 24])
    del part
    assert rows.take(9) == [2]


def test_neighbours_are_filled_together_and_others_alone(rows: PinnedRows) -> None:
    order = [5, 6, 0, 3, 4]
    staged = torch.randint(0, 255, (5, 10), dtype=torch.uint8)
    rows.fill(order, staged)
    assert [bytes(rows.lend(row)) for row in order] == [bytes(row.tolist()) for row in staged]


def test_neighbours_are_read_together_and_what_lies_elsewhere_is_told(rows: PinnedRows) -> None:
    order = [1, 2, 3, 4, 0, 6]
    staged = torch.randint(0, 255, (6, 10), dtype=torch.uint8)
    rows.fill(order, staged)
    lent = [rows.lend(row) for row in order]
    runs = rows.runs(lent)
    assert runs is not None
    assert [len(run) for run in runs] == [3, 1, 1, 1], "four rows are a slab"
    assert torch.equal(torch.cat(runs), staged)
    for most in (1, 2, 4, 9):
        pieces = [torch.cat(piece) for piece in cut(runs, most)]
        assert all(len(piece) == most for piece in pieces[:-1])
        assert torch.equal(torch.cat(pieces), staged)
    assert rows.runs([*lent, bytes(10)]) is None
    assert rows.runs([lent[0][1:]]) is None, "a part of a row is no row"
