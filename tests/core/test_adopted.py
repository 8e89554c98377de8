"""Prompts whose KV came from elsewhere."""

from penstock.runtime.core.request import Request, SamplingParams
from tests.core.steps import make_scheduler


def test_what_was_adopted_need_not_be_computed():
    prompt = tuple(range(10, 21))
    request = Request(request_id=1, prompt=prompt, params=SamplingParams(max_tokens=2))
    scheduler = make_scheduler(block_size=4, num_blocks=8)
    assert scheduler.adopt(request) == 8
    scheduler.check()
    scheduler.add(request, 0.0)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (8, 3)


def test_nothing_is_adopted_where_there_is_no_room_or_no_cache():
    request = Request(request_id=1, prompt=tuple(range(1, 60)), params=SamplingParams(max_tokens=2))
    assert make_scheduler(block_size=4, num_blocks=8).adopt(request) == 0
    assert make_scheduler(block_size=4, num_blocks=32, prefix_caching=False).adopt(request) == 0
