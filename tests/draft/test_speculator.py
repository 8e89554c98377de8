"""What is checked follows from what came true and from what steps take; nothing else is told to it."""

from collections.abc import Sequence

import pytest

from penstock.runtime.draft.drafter import Guess, View
from penstock.runtime.draft.drafters.ngram import NgramDrafter
from penstock.runtime.draft.drafters.suffix import SuffixDrafter
from penstock.runtime.draft.exploration import MOST_SKIPPED, SHARE
from penstock.runtime.draft.speculator import Speculator

STEP_S = {1: 1.0, 2: 1.1, 3: 1.15, 4: 1.2, 5: 1.25}


class Fixed:
    """Guesses the same tokens always."""

    def __init__(self, tokens: tuple[int, ...], name: str = "fixed") -> None:
        self.name = name
        self._tokens = tokens
        self.finished: list[View] = []
        self.step_s = 0.0
        self.num_asked = 0

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        self.num_asked += most > 0
        return [Guess(self._tokens[:most], self.name, 8) for _ in views]

    def seconds(self, length: int) -> float:
        return self.step_s * length

    def finish(self, view: View) -> None:
        self.finished.append(view)


def measured(speculator: Speculator) -> Speculator:
    for width, seconds in STEP_S.items():
        speculator.cost.add(width, seconds)
    return speculator


def run(speculator: Speculator, drawn: int, num_steps: int) -> list[int]:
    """How many drafts of one generation are checked in each step, the model drawing the same token for ever."""
    tokens = [0]
    lengths = []
    for _ in range(num_steps):
        (guess,) = speculator.propose([View((0, 0), tokens, 1)], 1)
        lengths.append(len(guess.tokens))
        num_right = next((i for i, token in enumerate(guess.tokens) if token != drawn), len(guess.tokens))
        tokens += [drawn] * (num_right + 1)
        speculator.cost.add(1 + len(guess.tokens), STEP_S[1 + len(guess.tokens)])
    return lengths


def test_guesses_that_come_true_are_checked_at_full_length() -> None:
    lengths = run(measured(Speculator([Fixed((7, 7, 7, 7))], most=4)), 7, 30)
    assert lengths[-5:] == [4] * 5


def test_guesses_that_are_wrong_are_soon_not_checked() -> None:
    lengths = run(measured(Speculator([Fixed((7, 7, 7, 7))], most=4)), 8, 60)
    assert not any(lengths[12:])


def test_a_drafter_that_gets_better_is_noticed_while_it_is_off() -> None:
    speculator = measured(Speculator([Fixed((7, 7, 7, 7))], most=4))
    run(speculator, 8, 60)
    speculator.finish((0, 0))
    assert max(run(speculator, 7, 300)) == 4


def test_a_plain_step_is_measured_from_time_to_time() -> None:
    lengths = run(measured(Speculator([Fixed((7, 7, 7, 7))], most=4)), 7, 400)
    assert 2 <= lengths.count(0) <= 8


def test_a_pinned_length_is_kept_whatever_comes_true() -> None:
    assert run(Speculator([Fixed((7, 7, 7, 7))], length=3), 8, 20) == [3] * 20


@pytest.mark.parametrize("pinned", [0, 2])
def test_a_client_may_pin_or_forbid(pinned: int) -> None:
    speculator = measured(Speculator([Fixed((7, 7, 7, 7))], most=4))
    views = [View((0, 0), [0], 1, pinned=pinned), View((1, 0), [0], 1)]
    first, second = speculator.propose(views, 2)
    assert (len(first.tokens), len(second.tokens) > 0) == (pinned, True)


def test_no_more_is_checked_than_there_is_room_for() -> None:
    (guess,) = Speculator([Fixed((7, 7, 7, 7))], length=4).propose([View((0, 0), [0], 1, room=2)], 1)
    assert len(guess.tokens) == 2


def test_of_two_drafters_the_one_that_was_right_is_asked() -> None:
    wrong, right = Fixed((8, 8, 8, 8), "wrong"), Fixed((7, 7, 7, 7), "right")
    speculator = Speculator([wrong, right], length=4)
    tokens = [0]
    for _ in range(40):
        (guess,) = speculator.propose([View((0, 0), tokens, 1)], 1)
        tokens.append(7)
    assert guess.source == "right"


def test_a_drafter_that_takes_long_is_asked_only_as_far_as_it_pays() -> None:
    """One that costs as much as the model's own steps is tried now and then, and no more."""
    lengths = {}
    for step_s in (0.05, 1.0):
        drafter = Fixed((7, 7, 7, 7), "model")
        drafter.step_s = step_s
        run(measured(Speculator([drafter], most=4)), 7, 300)
        lengths[step_s] = drafter.num_asked
    assert lengths[0.05] > 250
    assert lengths[1.0] < 20


def test_what_steps_take_is_found_out_in_doublings() -> None:
    """A step far wider than any measured may take far longer than all before it speak for."""
    speculator = Speculator([Fixed((7,) * 16)])
    speculator.cost.add(1, 1.0)
    tokens, widths = [0], []
    for _ in range(6):
        (guess,) = speculator.propose([View((0, 0), tokens, 1)], 1)
        widths.append(1 + len(guess.tokens))
        tokens += [7] * widths[-1]
        speculator.cost.add(widths[-1], 1.0)
    assert widths[:4] == [2, 4, 8, 16]
    assert max(widths) == 17


def test_every_drafter_hears_the_whole_answer_when_it_has_ended() -> None:
    drafter = Fixed((7,))
    speculator = Speculator([drafter])
    tokens = [0, 1]
    speculator.propose([View((3, 1), tokens, 1)], 1)
    tokens += [2, 3]
    speculator.finish((3, 1))
    speculator.finish((3, 1))
    assert [list(view.tokens) for view in drafter.finished] == [[0, 1, 2, 3]]


def test_drafters_keep_nothing_of_what_has_ended() -> None:
    speculator = Speculator([NgramDrafter(), SuffixDrafter(max_tokens=100)])
    for number in range(50):
        speculator.propose([View((number, 0), [1, 2, 3, 1, 2, 3], 2)], 1)
        speculator.finish((number, 0))
    assert not speculator.propose([], 0)
    kept = [value for name, value in vars(speculator).items() if isinstance(value, dict)]
    assert not any(kept)


@pytest.mark.parametrize("num_sequences", [1, 16, 64])
@pytest.mark.parametrize("asking_s", [0.0, 0.001, 0.01, 0.1, 1.0, 10.0])
def test_asking_in_vain_takes_a_small_part_of_the_time(asking_s: float, num_sequences: int) -> None:
    """Steps of a second. After a limit of skipped steps they ask all the same: else nobody would know when guesses pay again.
    Once they do, they are asked for in every step."""
    drafter = Fixed((7, 7, 7, 7))
    speculator = Speculator([drafter], most=4)
    views = [View((number, 0), [0], 1) for number in range(num_sequences)]
    for _ in range(1000):
        speculator.cost.add(num_sequences, 1.0)
        speculator.cost.add(2 * num_sequences, 9.0)
        speculator.cost.add(num_sequences + 1, 8.0)
        if speculator.is_due(num_sequences):
            assert not any(guess.tokens for guess in speculator.propose(views, num_sequences))
            speculator.charge(asking_s)
    assert drafter.num_asked * asking_s <= max((SHARE + 0.001) * 1000 + asking_s, 16 * asking_s)
    assert drafter.num_asked >= 15
    for _ in range(9):
        for width in (num_sequences, num_sequences + 1, 2 * num_sequences):
            speculator.cost.add(width, 1.0)
    assert any(speculator.is_due(num_sequences) for _ in range(MOST_SKIPPED + 1))
    assert any(guess.tokens for guess in speculator.propose(views, num_sequences))
    speculator.charge(asking_s)
    assert speculator.is_due(num_sequences)


def test_waits_for_guesses_that_do_not_come_take_a_small_part_of_the_time() -> None:
    speculator = Speculator([Fixed((7, 7, 7, 7))], most=4)
    num_waits = 0
    for _ in range(1000):
        speculator.cost.add(1, 1.0)
        speculator.cost.add(2, 9.0)
        if speculator.is_due(1):
            speculator.propose([View((0, 0), [0], 1)], 1)
            speculator.charge(0.001)
            speculator.exploration.lose(0.2)
            num_waits += 1
    assert 20 <= num_waits <= 1000 * SHARE / 0.2 + 2


def test_a_machine_that_stood_still_while_asking_is_soon_asked_again() -> None:
    speculator = Speculator([Fixed((7, 7, 7, 7))], most=4)
    speculator.cost.add(1, 1.0)
    speculator.cost.add(2, 9.0)
    for seconds in (0.005, 0.005, 100.0):
        speculator.propose([View((0, 0), [0], 1)], 1)
        speculator.charge(seconds)
    assert any(speculator.is_due(1) for _ in range(2))
