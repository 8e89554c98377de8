"""What could never be served is refused at once, with the way out; everything else has an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.runtime.core.limits import Limits
from tests.engine.answers import LIMITS, make_request


def refusal(limits: Limits, num_prompt: int, max_tokens: int | None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        limits.longest(make_request(1, (1,) * num_prompt, max_tokens=max_tokens))
    assert caught.value.code == "context_length_exceeded"
    return caught.value


@given(
    num_blocks=st.integers(1, 6),
    block_size=st.integers(1, 4),
    max_context=st.integers(2, 24),
    num_prompt=st.integers(1, 30),
    max_tokens=st.none() | st.integers(1, 30),
)
def test_a_request_is_refused_exactly_if_it_could_never_fit(
    num_blocks, block_size, max_context, num_prompt, max_tokens
):
    limits = LIMITS._replace(num_blocks=num_blocks, block_size=block_size, max_context=max_context)
    num_cached = num_prompt + (max_tokens or 1) - 1
    fits = num_cached + 1 <= max_context and num_cached <= num_blocks * block_size
    if not fits:
        refusal(limits, num_prompt, max_tokens)
        return
    longest = limits.longest(make_request(1, (1,) * num_prompt, max_tokens=max_tokens))
    assert longest == (num_prompt + max_tokens if max_tokens else min(max_context, num_blocks * block_size + 1))
    assert longest > num_prompt


def test_a_prompt_that_fills_the_context_leaves_no_room_to_answer():
    limits = LIMITS._replace(max_context=100)
    assert limits.longest(make_request(1, (1,) * 99)) == 100
    error = refusal(limits, 100, None)
    assert error.param == "prompt"
    assert "maximum context length is 100 tokens" in str(error)
    assert "the prompt has 100 tokens" in str(error)
    assert "shorten it or serve with a larger --max-context" in str(error)


def test_too_many_tokens_wanted_are_named():
    error = refusal(LIMITS._replace(max_context=2000, num_blocks=1000), 1500, 501)
    assert error.param == "max_tokens"
    assert "you requested 2,001 (1,500 in the prompt, 501 to generate)" in str(error)
    assert "lower max_tokens or serve with a larger --max-context" in str(error)


def test_more_choices_than_could_ever_wait_are_refused():
    limits = LIMITS._replace(max_waiting=3)
    limits.longest(make_request(1, (1,), n=3, max_tokens=1))
    with pytest.raises(
        RequestError, match="n is 4 but at most 3 sequences may wait; lower n or serve with a larger --max-waiting"
    ):
        limits.longest(make_request(1, (1,), n=4, max_tokens=1))


def test_what_is_larger_than_the_whole_cache_is_named():
    error = refusal(LIMITS._replace(max_context=5000, num_blocks=256, block_size=4), 1000, 26)
    assert error.param == "max_tokens"
    assert "needs 1,025 cached tokens but the whole KV cache holds 1,024" in str(error)
    assert "serve with a larger --num-blocks" in str(error)
    LIMITS._replace(max_context=5000, num_blocks=256, block_size=4).longest(make_request(1, (1,) * 1000, max_tokens=25))
