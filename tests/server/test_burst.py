"""Laws of the gate: a burst begins in order, a few a turn, and whoever gives up delays nobody."""

import asyncio

import pytest

from penstock.service.server.http.guard import BurstGate
from tests.machine import PATIENCE_S


@pytest.mark.parametrize("count", [1, 3, 4, 25])
def test_a_burst_begins_in_order_a_few_a_turn(count: int) -> None:
    async def session() -> None:
        gate, begun = BurstGate(4), list[int]()

        async def begin(number: int) -> None:
            await gate.take()
            begun.append(number)

        tasks = [asyncio.create_task(begin(number)) for number in range(count)]
        while not all(task.done() for task in tasks):
            num_before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) - num_before <= 4
        assert begun == list(range(count))

    asyncio.run(session())


def test_whoever_gives_up_takes_no_turn() -> None:
    async def session() -> None:
        gate = BurstGate(1)
        await gate.take()
        given_up = [asyncio.create_task(gate.take()) for _ in range(5)]
        last = asyncio.create_task(gate.take())
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.wait_for(last, PATIENCE_S)
        await asyncio.wait_for(gate.take(), PATIENCE_S)

    asyncio.run(session())
