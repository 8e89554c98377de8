"""Laws of measuring by turns: chance wins nothing, a clear gain wins, a clear loss is measured no more."""

from random import Random

from penstock.tools.tune.turns import LEAST_ROUNDS, Contest, kendall_tau


def rounds(gains: dict[str, float], count: int, seed: int, noise: float = 0.1) -> Contest:
    """A machine that is slow in some rounds, for all alike, and noisy besides."""
    random, contest = Random(seed), Contest(tuple(gains))
    for _ in range(count):
        if contest.is_over:
            break
        moment = random.uniform(0.4, 1.0)
        values = {"": moment * random.gauss(1.0, noise)}
        values |= {name: moment * random.gauss(1.0 + gains[name], noise) for name in contest.remaining}
        contest.add(values)
    return contest


def test_nothing_wins_by_chance() -> None:
    won = sum(rounds({"same": 0.0}, 6, seed).winner is not None for seed in range(200))
    assert won <= 200 * 0.12, "a look after each of four rounds, at 95 %: no more than a tenth or so"


def test_a_worse_setting_never_wins() -> None:
    assert not any(rounds({"worse": -0.3}, 8, seed).winner for seed in range(100))


def test_a_clear_gain_wins_and_ends_the_contest_early() -> None:
    found = [rounds({"better": 1.0, "worse": -0.5}, 12, seed) for seed in range(40)]
    assert all(one.winner == "better" for one in found)
    assert sum(len(one.rounds) for one in found) / len(found) < 9


def test_what_surely_lost_is_not_measured_again() -> None:
    contest = rounds({"worse": -0.6}, 30, 3)
    assert contest.is_over
    assert contest.remaining == ()
    assert len(contest.rounds) < 30


def test_two_rounds_decide_nothing() -> None:
    contest = Contest(("better",))
    for _ in range(LEAST_ROUNDS - 1):
        contest.add({"": 1.0, "better": 9.0})
    assert contest.winner is None
    assert not contest.is_over


def test_a_default_that_serves_nobody_can_be_beaten() -> None:
    contest = Contest(("better",))
    for _ in range(3):
        contest.add({"": 0.0, "better": 0.5})
    assert contest.winner == "better"


def test_rankings_agree_or_not() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1.0
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1.0
    assert kendall_tau([1], [1]) is None


def test_time_is_spent_on_the_best() -> None:
    contest = Contest(("good", "bad", "better"))
    for _ in range(2):
        contest.add({"": 1.0, "good": 1.1, "bad": 0.9, "better": 1.2})
    contest.narrow(2)
    assert set(contest.remaining) == {"good", "better"}
    contest.add({"": 1.0, "good": 1.1, "better": 1.25})
    assert contest.winner == "better"
    assert contest.gain("bad").count == 2
