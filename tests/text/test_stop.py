"""A text given in pieces is cut where the whole text is cut, and never more is held back than must be."""

import random

import pytest

from penstock.errors import RequestError
from penstock.runtime.text.stream.stop import MAX_STOP_CHARACTERS, StopMatcher, StopSet, cut_at_stop
from tests.text.timing import assert_proportional


def plain_hold_back(text: str, stops: list[str]) -> int:
    """Characters at the end of the text that may be the beginning of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def check_law(rng: random.Random) -> None:
    """Overlapping stops, stops inside one another, any pieces: cut, stop and what was held back are as defined."""
    alphabet = rng.choice(("ab", "abc", "ab\n", "é👍a", "aab"))
    stops = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(5))]
    text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(30)))
    include_stop = rng.random() < 0.3
    expected, expected_stop = cut_at_stop(text, stops)
    matcher = StopMatcher(stops, include_stop=include_stop)
    emitted, position = "", 0
    while position < len(text):
        length = rng.choice((0, 1, 1, 2, 5, 30))
        emitted += matcher.feed(text[position : position + length])
        position = min(position + length, len(text))
        if matcher.matched is None:
            held = plain_hold_back(text[:position], stops)
            assert emitted == text[: position - held], (text, stops)
        elif include_stop:
            assert emitted == expected + (expected_stop or "")
    emitted += matcher.flush()
    suffix = expected_stop or "" if include_stop else ""
    assert (emitted, matcher.matched) == (expected + suffix, expected_stop), (text, stops)


def campaign(num_cases: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(num_cases):
        check_law(rng)


def test_pieces_are_cut_like_the_whole() -> None:
    campaign(5_000, seed=1)


@pytest.mark.slow
def test_pieces_are_cut_like_the_whole_at_length() -> None:
    campaign(100_000, seed=2)


@pytest.mark.parametrize(
    ("text", "stops", "cut", "stop"),
    [
        ("abcd", ["c", "abcd"], "ab", "c"),  # the first character that completes any of them decides
        ("abcd", ["bc", "abc"], "", "abc"),  # of those it completes, the one that starts earliest
        ("aaab", ["aab"], "a", "aab"),
        ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
        ("no stop", ["x"], "no stop", None),
        ("", ["x"], "", None),
        ("anything", [], "anything", None),
    ],
)
def test_the_definition(text: str, stops: list[str], cut: str, stop: str | None) -> None:
    assert cut_at_stop(text, stops) == (cut, stop)


def test_what_follows_the_stop_is_kept_apart() -> None:
    matcher = StopMatcher(["</x>"])
    assert matcher.feed("ab</") == "ab"
    assert matcher.feed("x>cd") == ""
    assert (matcher.matched, matcher.rest) == ("</x>", "cd")
    assert matcher.feed("more") == matcher.flush() == ""


@pytest.mark.parametrize("stops", [["x" * (MAX_STOP_CHARACTERS + 1)], ["a"] * 5000, [""], ["a", ""]])
def test_unreasonable_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        StopSet(stops)
    assert caught.value.param == "stop"


ADVERSARIAL = {
    "long run": ["a" * 5000 + "b"],
    "periodic": ["ab" * 3000 + "c"],
    "many prefixes": ["a" * n + "b" for n in range(1, 300)],
    "nearly there": ["a" * n + "c" + "a" * n for n in range(1, 200)],
}


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_time_is_proportional_to_the_text(name: str, size: int) -> None:
    stops = StopSet(ADVERSARIAL[name])

    def read(text: str) -> None:
        matcher = StopMatcher(stops)
        for start in range(0, len(text), size):
            matcher.feed(text[start : start + size])

    assert_proportional(read, "ab" * 32_000 if name == "periodic" else "a" * 64_000)
