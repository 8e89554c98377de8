"""Resumed = undisturbed: an engine that is handed the tokens another has drawn goes on as that one would have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC
from tests.engine.answers import LIMITS, expected, make_request, serve


@given(
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=30),
    n=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 19), min_size=3, max_size=3),
    temperature=st.sampled_from([0.0, 1.0]),
    num_blocks=st.sampled_from([16, 64]),
)
@pytest.mark.parametrize("batching", [CONTINUOUS, STATIC])
def test_an_answer_goes_on_at_any_point_of_any_choice(batching, prompt, n, cuts, temperature, num_blocks):
    limits = LIMITS._replace(num_blocks=num_blocks)
    whole = make_request(1, prompt, max_tokens=20, n=n, seed=5, temperature=temperature)
    rights = [expected(whole, choice, limits)[0] for choice in range(n)]
    resumed = tuple(tuple(right[: cuts[choice]]) for choice, right in enumerate(rights))
    answers = serve([replace(whole, resumed=resumed)], limits, batching=batching)
    for choice, right in enumerate(rights):
        assert answers[1, choice].tokens == right[cuts[choice] :]


def test_what_cannot_go_on_is_refused():
    whole = make_request(1, [1, 2, 3], max_tokens=4)
    with pytest.raises(RequestError, match="as long as it may be"):
        LIMITS.longest(replace(whole, resumed=((1, 2, 3, 4),)))
    with pytest.raises(RequestError, match="n is 1"):
        replace(whole, resumed=((1,), (2,)))
    with pytest.raises(RequestError, match="no token id"):
        replace(whole, resumed=((-1,),))
