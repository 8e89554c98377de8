"""Laws of the gate: a burst begins in order, a few a turn, tenants in turn, and whoever gives up delays nobody."""

import asyncio

import pytest

from penstock.service.server.http.large import BYTES_BEGUN, BurstGate
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


@pytest.mark.parametrize("num_bytes", [0, 2 * BYTES_BEGUN, 20 * BYTES_BEGUN])
def test_one_tenants_burst_lets_another_begin_in_the_next_turn(num_bytes: int) -> None:
    async def session() -> None:
        gate, begun = BurstGate(4), list[str]()

        async def begin(tenant: str, size: int) -> None:
            await gate.take(tenant, size)
            begun.append(tenant)

        flood = [asyncio.create_task(begin("flood", num_bytes)) for _ in range(300)]
        for _ in range(3):
            await asyncio.sleep(0)
        num_before = len(begun)
        polite = asyncio.create_task(begin("polite", 0))
        await asyncio.wait_for(polite, PATIENCE_S)
        assert begun.index("polite") - num_before <= 3 * 4, "those of three turns at most"
        await asyncio.gather(*flood)

    asyncio.run(session())


def test_bodies_that_begin_in_a_turn_are_few_or_one() -> None:
    async def session() -> None:
        gate, begun = BurstGate(4), list[int]()

        async def begin(size: int) -> None:
            await gate.take("flood", size)
            begun.append(size)

        sizes = [30 * BYTES_BEGUN if number % 3 else BYTES_BEGUN for number in range(30)]
        tasks = [asyncio.create_task(begin(size)) for size in sizes]
        while not all(task.done() for task in tasks):
            num_before = len(begun)
            await asyncio.sleep(0)
            now = begun[num_before:]
            assert sum(1 + size // BYTES_BEGUN for size in now[:-1]) < 4, "the last may be as large as it is"
        assert begun == sizes

    asyncio.run(session())
