"""Which way an operation is computed."""

import torch

from penstock.runtime.ops.op import Op, plainly


def test_a_kernel_stands_in_where_it_fits_unless_definitions_are_asked_for() -> None:
    op = Op("twice", lambda x: x * 2)
    op.kernel("cpu", fits=lambda x: len(x) > 1)(lambda x: x * 2 + 1000)
    one, two = torch.ones(1), torch.ones(2)
    assert op(one).tolist() == [2]
    assert op(two).tolist() == [1002, 1002]
    with plainly():
        assert op(two).tolist() == [2, 2]
    assert op(two).tolist() == [1002, 1002]
