"""A profile is read back as it was written, and what is none is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.cost.measured.profile import Profile, read_profile
from penstock.tools.cost.measured.ramps import MeasuredCost
from tests.cost.test_measured import BATCHES, FITTED

SIZING = {"num_blocks": 64, "block_size": 16}
PROFILE = Profile(
    model="some-model", vocab_size=100, depth=1, sizing=SIZING, fitted=FITTED, machine={"processor": "one"}
)


@given(BATCHES)
def test_a_profile_read_back_tells_the_same_times(batch):
    again = read_profile(PROFILE.to_json(), "file")
    assert again == PROFILE
    assert MeasuredCost(again.fitted).step_s(batch) == MeasuredCost(FITTED).step_s(batch)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(JSON)
def test_what_is_no_profile_is_refused(data):
    with pytest.raises(ConfigError):
        read_profile(json.dumps(data), "file")


@settings(max_examples=40)
@given(st.sampled_from(["penstock_profile", "model", "vocab_size", "depth", "sizing", "fitted"]), JSON)
def test_a_profile_with_something_wrong_is_refused_or_sound(place, data):
    broken = json.loads(PROFILE.to_json()) | {place: data}
    try:
        profile = read_profile(json.dumps(broken), "file")
    except ConfigError:
        return
    assert place in ("penstock_profile", "model", "vocab_size", "depth")
    assert profile.depth in (1, 2)
    assert profile.vocab_size >= 1


@pytest.mark.parametrize("place", json.loads(PROFILE.to_json()))
def test_nothing_that_matters_may_be_missing(place):
    broken = json.loads(PROFILE.to_json())
    del broken[place]
    if place in ("machine", "versions", "config", "measuring", "back_test", "shape", "all_reduce"):
        assert read_profile(json.dumps(broken), "file").fitted == FITTED
    else:
        with pytest.raises(ConfigError):
            read_profile(json.dumps(broken), "file")


@pytest.mark.parametrize("ramp", [["rows", 0, None, -1.0], ["rows", 0, 0, 1.0], ["x", 0, 1, 1.0], ["rows", 0, 1, 1e9]])
def test_ramps_that_cannot_be_are_refused(ramp):
    broken = json.loads(PROFILE.to_json())
    broken["fitted"]["device"] = [ramp]
    with pytest.raises(ConfigError, match="no profile"):
        read_profile(json.dumps(broken), "file")


@pytest.mark.parametrize(
    "slowdown", [[0.0, 1.0], [1e-9, 1.0], [-1.0, 1.0], [0.1, 0.0], [0.1, -2.0], [0.1, 1e9], [0.1], [0.1, "x"], 3]
)
def test_spells_that_cannot_be_are_refused(slowdown):
    broken = json.loads(PROFILE.to_json())
    broken["fitted"]["slowdowns"] = [[0.1, 1.0], slowdown]
    with pytest.raises(ConfigError, match="no profile"):
        read_profile(json.dumps(broken), "file")
