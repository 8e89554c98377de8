"""Laws of silence: a server is gone when all that is asked of it comes to nothing, and held up when answers stand still."""

import pytest

from penstock.tools.bench.client.answer import Answer
from penstock.tools.bench.client.silence import GONE_S, LEAST_LOST, LEAST_S, silence_of
from penstock.tools.bench.report.flags import flags_of
from tests.bench.figures import COUNT, answer, figures, measured


def lost(scheduled_s: float, end_s: float | None, *pieces: float) -> Answer:
    one = Answer(0, scheduled_s, 50, 5, sent_s=scheduled_s, end_s=end_s, error="no answer" if end_s else "")
    one.piece_times.extend(pieces)
    return one


def held_up(first_s: float, for_s: float) -> Answer:
    one = answer(0, tokens=1)
    one.piece_times[:] = type(one.piece_times)("d", [first_s, first_s + for_s])
    one.end_s = first_s + for_s
    return one


def test_a_server_that_answers_is_never_silent():
    answers = [answer(number) for number in range(COUNT)]
    assert silence_of(answers, 1e6) is None
    assert silence_of([], 1e6) is None


@pytest.mark.parametrize("number", [LEAST_LOST - 1, LEAST_LOST])
def test_a_few_requests_sent_in_vain_after_the_last_sign_tell_that_it_is_gone(number):
    answers = [answer(0), *(lost(1.0 + 0.1 * each, 1.1 + 0.1 * each) for each in range(number))]
    found = silence_of(answers, 2.0)
    if number < LEAST_LOST:
        assert found is None
    else:
        assert found.is_gone
        assert (found.from_s, found.to_s, found.num_open) == (answers[0].end_s, 2.0, number)


def test_a_server_that_breaks_every_answer_is_not_gone_while_it_begins_them():
    assert silence_of([lost(each, each + 0.5, each + 0.4) for each in range(9)], 9.0) is None


@pytest.mark.parametrize(("end_s", "is_gone"), [(0.5 * GONE_S, False), (GONE_S + 2.0, True)])
def test_requests_given_up_after_long_silence_tell_it_too(end_s, is_gone):
    found = silence_of([answer(0), *(lost(0.1, None, 0.2) for _ in range(LEAST_LOST))], end_s)
    assert (found is not None) == is_gone


@pytest.mark.parametrize(("for_s", "is_gone"), [(0.9 * LEAST_S, False), (1.5 * LEAST_S, True)])
def test_a_server_that_stood_still_until_its_requests_ran_out_of_time_is_gone(for_s, is_gone):
    found = silence_of([lost(0.0, 0.2 + for_s, 0.2) for _ in range(LEAST_LOST)], 0.2 + for_s)
    assert (found is not None and found.is_gone) == is_gone


@pytest.mark.parametrize(("for_s", "is_reported"), [(0.9 * LEAST_S, False), (1.5 * LEAST_S, True)])
def test_answers_that_stood_still_are_told_by_how_long(for_s, is_reported):
    answers = [held_up(1.0, for_s), held_up(1.0, for_s), answer(0)]
    found = silence_of(answers, 60.0)
    assert (found is not None) == is_reported
    if found is not None:
        assert not found.is_gone
        assert (found.duration_s, found.num_open) == (pytest.approx(for_s), 2)
        (flag,) = (flag for flag in flags_of(figures(measured(answers, silence=found))) if flag.name == "silent")
        assert (flag.level, f"{for_s:.1f} s" in flag.text) == ("warning", True)


def test_another_answer_that_goes_on_breaks_a_silence_and_a_wait_for_the_first_token_is_none():
    slow = held_up(1.0, 2.0 * LEAST_S)
    beside = held_up(1.0 + 0.7 * LEAST_S, 0.6 * LEAST_S)
    assert silence_of([slow, beside], 60.0) is None
    assert silence_of([answer(0), answer(1, ttft_s=3.0 * LEAST_S)], 60.0) is None


@pytest.mark.parametrize(("number", "words"), [(1, "1 request came"), (2, "2 requests came")])
def test_a_deaf_server_is_gone_however_few_wait_for_it(number, words):
    answers = [answer(0), *(lost(0.1, None, 0.2) for _ in range(number))]
    assert silence_of(answers, 1.0) is None
    found = silence_of(answers, 1.0, is_deaf=True)
    assert (found.is_gone, found.num_open) == (True, number)
    flag = flags_of(figures(measured(answers, silence=found)))[0]
    assert (flag.name, words in flag.text, "/v1/models" in flag.text) == ("server-gone", True, True)
