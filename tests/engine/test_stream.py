"""Laws of a stream: a slow reader misses nothing, and what waits for it does not grow with the number of steps."""

import asyncio
from random import Random

import pytest

from penstock.runtime.core.batch import Delta, Finish, FinishReason, PrefixHit
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.stream import MAX_PENDING, DeltaStream, folded

END = Finish(FinishReason.LENGTH)


@pytest.mark.parametrize("pause", [1, 7, MAX_PENDING, 1000])
def test_a_reader_of_any_pace_hears_the_same(pause: int) -> None:
    async def session() -> None:
        stream = DeltaStream(Request(request_id=1, prompt=(1,), params=SamplingParams(n=2)))
        heard: dict[int, list[int]] = {0: [], 1: []}
        finished = []
        for number in range(1000):
            for choice in (0, 1):
                prefix = PrefixHit(3, "") if number == 0 else None
                stream.push(Delta(1, choice, (number,), END if number == 999 else None, prefix=prefix), float(number))
            if number % pause == pause - 1:
                deltas = await stream.take()
                assert len(deltas) <= MAX_PENDING
                for delta in deltas:
                    heard[delta.choice].extend(delta.token_ids)
                    finished += [delta.choice] if delta.finish else []
        async for delta in stream:
            heard[delta.choice].extend(delta.token_ids)
            finished += [delta.choice] if delta.finish else []
        assert heard == {0: list(range(1000)), 1: list(range(1000))}
        assert sorted(finished) == [0, 1]
        assert stream.is_over

    asyncio.run(session())


@pytest.mark.parametrize("seed", range(20))
def test_telling_at_once_changes_neither_what_is_heard_nor_its_order(seed: int) -> None:
    """Whatever the reader refuses, whenever the task comes round: every token once, in order, the finish last."""
    random = Random(seed)

    async def session() -> None:
        stream = DeltaStream(Request(request_id=1, prompt=(1,)))
        heard: list[int] = []
        num_at_once = 0

        def read(delta: Delta, now: float) -> bool:
            nonlocal num_at_once
            assert delta.finish is None
            if random.random() < 0.3:
                return False
            heard.extend(delta.token_ids)
            num_at_once += 1
            return True

        async def follow() -> None:
            stream.reader = read
            while not stream.is_over:
                deltas = await stream.take()
                await asyncio.sleep(0)  # writing to a client that reads slowly
                heard.extend(token for delta in deltas for token in delta.token_ids)

        task = asyncio.create_task(follow())
        for number in range(300):
            is_held = random.random() < 0.3
            delta = Delta(1, 0, (number,), END if number == 299 else None)
            stream.push(delta, 0.0, at_once=not is_held and random.random() < 0.9, is_held=is_held)
            if is_held and random.random() < 0.7:
                stream.release(0.0)
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
        await task
        assert heard == list(range(300))
        assert num_at_once > 50

    asyncio.run(session())


def test_a_task_that_is_woken_finds_nothing_and_waits_again() -> None:
    async def session() -> None:
        stream = DeltaStream(Request(request_id=1, prompt=(1,)))
        taking = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.wake()
        assert await taking == []
        stream.wake()
        stream.push(Delta(1, 0, (7,)), 0.0)
        assert [delta.token_ids for delta in await stream.take()] == [(7,)]

    asyncio.run(session())


@pytest.mark.parametrize("n", [1, 63, 64, 128])
def test_folding_costs_no_more_than_what_is_pushed(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many choices as may wait, each push once folded all of them again."""
    num_folded = 0

    def count(deltas: list[Delta]) -> list[Delta]:
        nonlocal num_folded
        num_folded += len(deltas)
        return folded(deltas)

    monkeypatch.setattr("penstock.runtime.engine.stream.folded", count)
    stream = DeltaStream(Request(request_id=1, prompt=(1,), params=SamplingParams(n=n)))
    for number in range(50):
        for choice in range(n):
            stream.push(Delta(1, choice, (number,)), 0.0)
    assert num_folded <= 2 * 50 * n
