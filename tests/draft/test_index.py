"""Laws of the index: what it finds is there, and agrees as far as it says."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.draft.drafters.index import END, MAX_MATCH, TokenIndex

texts = st.lists(st.integers(0, 3), max_size=80)


def agreement(text: list[int], place: int, suffix: list[int]) -> int:
    length = 0
    while length < min(place, len(suffix), MAX_MATCH) and text[place - 1 - length] == suffix[-1 - length]:
        length += 1
    return length


@given(texts, texts)
def test_what_is_found_agrees_as_far_as_it_says(text: list[int], suffix: list[int]) -> None:
    place, match = TokenIndex(text).find(suffix)
    if place:
        assert match >= 2
        assert agreement(text, place, suffix) >= match
    else:
        assert not any(agreement(text, end, suffix) >= 2 for end in range(len(text) + 1))


@given(texts)
def test_a_text_finds_its_own_end_only_earlier(text: list[int]) -> None:
    place, match = TokenIndex(text).find_earlier()
    assert place < max(len(text), 1)
    if place:
        assert agreement(text, place, text) >= match >= 2
    else:
        assert not any(agreement(text, end, text) >= 2 for end in range(len(text)))


@given(texts, st.integers(0, 80))
def test_added_in_parts_is_added_whole(text: list[int], cut: int) -> None:
    parts = TokenIndex(text[:cut])
    parts.extend(text[cut:])
    assert parts.find_earlier() == TokenIndex(text).find_earlier()


def test_the_longest_of_a_few_agreements_is_taken() -> None:
    index = TokenIndex([9, 1, 2, 3, 7, 8, 1, 2, 3, 4])
    assert index.find([9, 1, 2, 3]) == (4, 4)
    assert index.after(4, 3) == (7, 8, 1)
    assert index.find([5, 1, 2, 3])[1] == 3


def test_no_guess_goes_beyond_the_end_of_its_text() -> None:
    index = TokenIndex([1, 2, 3, END, 4, 5])
    assert index.after(1, 10) == (2, 3)
    assert index.find([3, END, 4])[0] == 0 or END not in index.after(4, 10)
