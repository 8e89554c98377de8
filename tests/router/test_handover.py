"""The rule by which prompts are handed over: whoever waits less, by what is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.kv_events import BlockOffer, read_offer
from penstock.service.router.handover import PromptSite, Transfer, judge_handover

FAST = Transfer(token_s=1e-6)
COUNTS = st.integers(0, 100_000)
PACES = st.floats(1e-6, 1e-1)


def test_a_prompt_is_moved_where_it_would_hold_up_answers() -> None:
    here = there = PromptSite(4000, 0, 1e-3)
    assert not judge_handover(here, there, FAST, 0).is_moved
    assert judge_handover(here, there, FAST, 4).is_moved
    assert judge_handover(here._replace(num_waiting=4000), there, FAST, 0).is_moved


@pytest.mark.parametrize(
    ("here", "there", "transfer", "why"),
    [
        (PromptSite(10, 0, 1e-3), PromptSite(4000, 0, 1e-3), FAST, "its blocks are here"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 0, 1e-3), FAST._replace(is_shared=True), "both share a device"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 0, 1e-3), Transfer(1e-1), "the transfer takes longer"),
        (PromptSite(4000, 0, 1e-3), PromptSite(4000, 90_000, 1e-3), FAST, "it waits longer there"),
    ],
)
def test_the_rule_says_why_it_does_not_pay(here: PromptSite, there: PromptSite, transfer: Transfer, why: str) -> None:
    verdict = judge_handover(here, there, transfer, 8)
    assert (verdict.is_moved, verdict.why) == (False, why)


def test_before_anything_is_measured_it_is_tried() -> None:
    assert judge_handover(PromptSite(4000), PromptSite(4000), FAST, 0).is_moved


@given(COUNTS, COUNTS, COUNTS, COUNTS, PACES, PACES, st.integers(0, 200))
def test_more_answers_in_progress_never_bring_a_prompt_back(
    mine: int, my_queue: int, theirs: int, their_queue: int, my_pace: float, their_pace: float, num_running: int
) -> None:
    here, there = PromptSite(mine, my_queue, my_pace), PromptSite(theirs, their_queue, their_pace)
    if judge_handover(here, there, FAST, num_running).is_moved:
        assert judge_handover(here, there, FAST, num_running + 1).is_moved
        assert judge_handover(here, there._replace(num_waiting=0), FAST, num_running).is_moved


def test_an_offer_is_read_as_it_was_written() -> None:
    offer = BlockOffer("prefill", 4000, "0" * 32, 65_536, 16, "cuda:0", 1234.5, 1e9)
    assert read_offer(offer.encode()) == offer
    for nonsense in (b"", b"prefill", b"prefill x 0 1 2 cpu 0 0", b"\xff", offer.encode() + b" 1"):
        assert read_offer(nonsense) is None
