"""Laws of a stream: a slow reader misses nothing, and what waits for it does not grow with the number of steps."""

import asyncio

import pytest

from penstock.core.batch import Delta, Finish, FinishReason, PrefixHit
from penstock.core.request import Request, SamplingParams
from penstock.engine.stream import MAX_PENDING, DeltaStream

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
