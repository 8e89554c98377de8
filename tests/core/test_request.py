"""Wishes are checked once, when made: whatever is sent, the answer is a request or a RequestError that names the field."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.runtime.core.request import MAX_CHOICES, MAX_TOKEN_LIST, Request, SamplingParams

NAN, INF = math.nan, math.inf
HUGE = (2**64, 10**5000, -(10**5000), 1e308, -1e308)
NOT_NUMBERS = (True, False, "1", "", [], {}, b"1", object(), 1j)

NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
WHOLE = ["top_k", "seed", "n", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs"]
OPTIONAL = ["max_tokens", "logprobs", "prompt_logprobs", "deadline_s"]
OF_REQUEST = ["request_id", "arrival_s", "priority", "deadline_s"]
MAY_BE_NEGATIVE = ["seed", "presence_penalty", "frequency_penalty", "arrival_s", "priority", "deadline_s"]


def make(name, value):
    if name in OF_REQUEST:
        return Request(**{"request_id": 1, "prompt": (1,), name: value})
    return SamplingParams(**{name: value})


@pytest.mark.parametrize("name", NUMBERS + WHOLE + OF_REQUEST)
@pytest.mark.parametrize(
    "value", [NAN, INF, -INF, *HUGE, *NOT_NUMBERS, None, -1, 0.5], ids=lambda value: type(value).__name__
)
def test_what_is_no_number_in_range_is_refused_by_name(name, value):
    if (value is None and name in OPTIONAL) or (value == -1 and name in MAY_BE_NEGATIVE):
        make(name, value)
        return
    if value == 0.5 and name not in [*WHOLE, "request_id", "priority"]:
        make(name, value)
        return
    with pytest.raises(RequestError, match=rf"^{name} is ") as caught:
        make(name, value)
    assert caught.value.param == name
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1, 100.0], [-1e-9, 100.1]),
        ("top_p", [1e-9, 1, 1.0], [0, 0.0, -0.0, 1.0001]),
        ("min_p", [0.0, 1.0], [-0.01, 1.01]),
        ("presence_penalty", [-2.0, 2.0], [-2.01, 2.01]),
        ("frequency_penalty", [-2.0, 2.0], [-2.01, 2.01]),
        ("repetition_penalty", [0.01, 100], [0.0, 100.5]),
        ("top_k", [0, 2**31], [-1, 2**31 + 1]),
        ("seed", [-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63]),
        ("n", [1, MAX_CHOICES], [0, MAX_CHOICES + 1]),
        ("min_tokens", [0, 2**31], [-1, 2**31 + 1]),
        ("max_tokens", [1, 2**31, None], [0, 2**31 + 1]),
        ("logprobs", [0, 128, None], [-1, 129]),
        ("prompt_logprobs", [0, 128, None], [-1, 129]),
        ("priority", [-(2**31), 2**31], [2**31 + 1, -(2**31) - 1]),
    ],
)
def test_ranges_end_where_they_say(name, good, bad):
    for value in good:
        make(name, value)
    for value in bad:
        with pytest.raises(RequestError, match=name):
            make(name, value)


@given(
    st.dictionaries(
        st.sampled_from(NUMBERS + WHOLE),
        st.floats() | st.integers() | st.booleans() | st.sampled_from([None, "1", (), [1]]),
    )
)
def test_nothing_else_is_ever_raised(options):
    with suppress(RequestError):
        params = SamplingParams(**options)
        assert all(math.isfinite(getattr(params, name)) for name in NUMBERS)


def test_min_tokens_may_not_exceed_max_tokens():
    SamplingParams(min_tokens=5, max_tokens=5)
    with pytest.raises(RequestError, match="min_tokens is 6 but max_tokens is 5; lower min_tokens"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_token_ids_are_token_ids(name):
    SamplingParams(**{name: (0, 2**31 - 1)})
    for value in (-1, 2**31, 2**64, "1", 1.5, None):
        with pytest.raises(RequestError, match=rf"^{name} has something that is no token id") as caught:
            SamplingParams(**{name: (7, value)})
        assert caught.value.param == name
        with pytest.raises(RequestError, match="banned_sequences"):
            SamplingParams(banned_sequences=((1, 2), (3, value)))
        with pytest.raises(RequestError, match="logit_bias"):
            SamplingParams(logit_bias=((value, 1.0),))
        with pytest.raises(RequestError, match=r"^prompt has something that is no token id"):
            Request(request_id=1, prompt=(1, value))


@pytest.mark.parametrize("bias", [NAN, INF, 100.5, -101, "1", None])
def test_biases_are_numbers_in_range(bias):
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingParams(logit_bias=((1, 0.0), (2, bias)))


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_sequences", "stop", "stop_token_ids"])
def test_lists_are_bounded(name):
    entry = {"logit_bias": (1, 1.0), "banned_sequences": (1,), "stop": "a"}.get(name, 1)
    SamplingParams(**{name: (entry,) * MAX_TOKEN_LIST})
    with pytest.raises(RequestError, match=f"{name} has more than {MAX_TOKEN_LIST} entries; send fewer"):
        SamplingParams(**{name: (entry,) * (MAX_TOKEN_LIST + 1)})


def test_an_empty_stop_string_is_refused():
    with pytest.raises(RequestError, match="stop has an empty string"):
        SamplingParams(stop=("a", ""))


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestError, match="the prompt is empty; send at least one token"):
        Request(request_id=1, prompt=())


def test_what_drawing_needs_to_know():
    assert SamplingParams(temperature=0.0).is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy
    assert not SamplingParams().reads_history
    assert not SamplingParams().has_penalties
    for options in ({"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1}):
        assert SamplingParams(**options).has_penalties
        assert SamplingParams(**options).reads_history
    assert SamplingParams(banned_sequences=((1,),)).reads_history
    assert not SamplingParams(banned_sequences=((1,),)).has_penalties


def test_options_are_immutable_and_hashable():
    params = SamplingParams(stop=("a",), seed=3)
    assert hash(params) == hash(SamplingParams(stop=("a",), seed=3))
    with pytest.raises(AttributeError):
        params.seed = 4
