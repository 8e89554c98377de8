"""The drafter around heads asks only for what heads can know, and learns what guesses take."""

from collections.abc import Iterator, Sequence

from penstock.runtime.draft.drafter import NO_GUESS, View
from penstock.runtime.draft.drafters.heads import MAX_ROWS, HeadDrafter
from penstock.runtime.draft.guess_cost import GuessCost


class Counting:
    """Heads that guess the numbers after the last token, two at most."""

    name = "eagle"
    most = 2

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def guess(self, key: tuple[int, int], row: int, tokens: Sequence[int], most: int) -> list[int]:
        return [tokens[-1] + 1 + place for place in range(most)]

    def forget(self, key: tuple[int, int]) -> None:
        self.ended.append(key)


def view(number: int, row: int) -> View:
    return View((number, 0), [1, number], 1, row=row)


def test_guesses_are_as_long_as_heads_can_and_for_rows_that_there_are() -> None:
    heads = Counting()
    times: Iterator[int] = iter(range(1000))
    drafter = HeadDrafter(heads, lambda: float(next(times)))
    found = drafter.propose([view(10, 0), view(20, -1), view(30, 1)], 5)
    assert [guess.tokens for guess in found] == [(11, 12), (), (31, 32)]
    assert drafter.propose([view(10, 0)], 0) == [NO_GUESS]
    many = drafter.propose([view(number, number) for number in range(MAX_ROWS + 2)], 1)
    assert [bool(guess.tokens) for guess in many] == [True] * MAX_ROWS + [False] * 2
    drafter.finish(view(10, 0))
    assert heads.ended == [(10, 0)]


def test_what_guesses_take_is_learned_by_their_length() -> None:
    cost = GuessCost()
    assert 0.0 < cost(3) < 1e-3, "tried before it is known"
    for _ in range(200):
        for length in (1, 2, 4):
            cost.learn(length, 0.5 + 0.25 * length)
    assert [round(cost(length), 2) for length in (0, 1, 2, 4, 6)] == [0.0, 0.75, 1.0, 1.5, 2.0]


def test_one_guess_that_took_a_hundred_times_as_long_changes_little() -> None:
    cost = GuessCost()
    for seconds in (1.0, 1.0, 100.0):
        cost.learn(2, seconds)
    assert cost(2) < 1.25
    for _ in range(40):
        cost.learn(2, 3.0)
    assert cost(2) > 2.9, "what stays is learned"


def test_a_guess_that_has_to_catch_up_tells_nothing_of_the_usual_time() -> None:
    now_s = 0.0

    class Reading(Counting):
        """A second for each token that came since the last guess."""

        num_read = 0

        def guess(self, key: tuple[int, int], row: int, tokens: Sequence[int], most: int) -> list[int]:
            nonlocal now_s
            now_s += len(tokens) - self.num_read
            self.num_read = len(tokens)
            return super().guess(key, row, tokens, most)

    drafter = HeadDrafter(Reading(), lambda: now_s)
    for length in (300, 301, 302, 400, 401, 500, 501):
        drafter.propose([View((1, 0), list(range(length)), 300, row=0)], 1)
    assert drafter.seconds(1) == 1.0
