"""What a benchmark says about servers that misbehave: every doubt is raised by the fault that earns it, over real sockets."""

import asyncio
import time
from dataclasses import replace

import pytest

from penstock.errors import ConfigError
from penstock.metrics.summary import Slo
from penstock.service.upstream.endpoint import endpoint_of
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.target import Route, find_target
from penstock.tools.bench.knee import MOST_TRIALS, Knee
from penstock.tools.bench.load import LoadProgress, LoadShape
from penstock.tools.bench.plan import TrafficPlan, plan_of_recipe
from penstock.tools.bench.session import BenchRun, KneeGoal, Session
from penstock.tools.workload.arrivals import AtOnce, Constant, Poisson
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Conversation, Recipe, SharedPrefix
from tests.bench.stub import TEMPLATE_TOKENS, Stub

RECIPE = Recipe(AtOnce(), Uniform(20, 60), Uniform(2, 9), num_requests=40)
USERS = LoadShape(users=4)
OPEN = LoadShape(grace_s=0.2)


async def bench(
    stub: Stub,
    recipe: Recipe = RECIPE,
    shape: LoadShape = USERS,
    *,
    nonce: str = "n",
    route: Route = "chat",
    name: str = "run",
    slo: Slo = Slo(ttft_s=5.0),  # noqa: B008
    turns: int = 1,
    watch=None,
    before=lambda: None,
) -> BenchRun:
    client = Client(endpoint_of(stub.url))
    target = await find_target(client, "", route, nonce)

    def make(run: str, rate: float | None) -> TrafficPlan:
        chosen = recipe if rate is None else replace(recipe, arrivals=Poisson(rate))
        if turns > 1:
            chosen = replace(chosen, conversation=Conversation(turns))
        return plan_of_recipe(chosen, 1, name=f"{run} ")

    session = Session(client, target, shape, KneeGoal(slo), make, watch)
    before()
    run = await session.measure(name)
    client.close()
    return run


def run_bench(stub: Stub, *arguments, **options) -> BenchRun:
    async def scenario() -> BenchRun:
        async with stub:
            return await bench(stub, *arguments, **options)

    return asyncio.run(scenario())


def raised(run: BenchRun, *names: str) -> set[str]:
    """The doubts among these; how busy this machine is must not decide a test."""
    return {flag.name for flag in run.flags} & set(names)


SERVER_FAULTS = ("failures", "over-saturated", "warm-cache", "prompt-lengths", "short-answers", "no-usage", "not-alone")


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_sound_server_raises_no_doubt_and_gives_what_was_asked(route, is_split):
    run = run_bench(Stub(is_split=is_split), route=route)
    assert not raised(run, *SERVER_FAULTS)
    figures = run.figures
    assert figures.num_requests == figures.summary.num_successes == 40
    assert figures.lengths.prompt_error_max == 0
    assert figures.lengths.answer_mean == figures.lengths.answer_asked
    assert figures.tokens_per_piece == 1.0
    assert figures.cache.hit_fraction == 0.0
    for answer in run.answers:
        assert len(answer.piece_times) == answer.num_tokens == answer.num_answer_asked
        assert answer.scheduled_s <= answer.sent_s <= answer.piece_times[0] <= answer.piece_times[-1] <= answer.end_s


def test_an_opening_event_without_text_is_no_first_token_but_reasoning_is():
    run = run_bench(
        Stub(first_s=0.1, token_s=0.03, reasoning_words=2), replace(RECIPE, answers=Fixed(5), num_requests=4)
    )
    assert run.figures.num_reasoning_pieces == 8
    for answer in run.answers:
        timeline = answer.timeline()
        assert timeline.ttft_s >= 0.1
        assert timeline.num_tokens == 5
        assert timeline.tpot_s == pytest.approx((timeline.e2e_s - timeline.ttft_s) / 4)
        assert timeline.e2e_s >= 0.1 + 4 * 0.03


def test_several_tokens_a_piece_are_counted_as_the_server_counts_them():
    run = run_bench(Stub(words_a_piece=4), replace(RECIPE, answers=Fixed(8)))
    assert run.figures.tokens_per_piece == 4.0
    assert run.figures.summary.num_output_tokens == 40 * 8
    assert raised(run, "several-tokens-a-piece")


@pytest.mark.parametrize(
    ("stub", "word"), [(Stub(fails_every=20), "the boiler is out"), (Stub(breaks_every=20), "early")]
)
def test_five_failures_in_a_hundred_are_shouted_and_stand_apart(stub, word):
    run = run_bench(stub, replace(RECIPE, num_requests=200, answers=Fixed(3)))
    assert raised(run, *SERVER_FAULTS) == {"failures"}
    (flag,) = (flag for flag in run.flags if flag.name == "failures")
    assert flag.level == "warning"
    assert "FAILED" in flag.text
    assert word in flag.text
    figures = run.figures
    assert 8 <= figures.num_failed <= 12
    assert figures.summary.num_successes + figures.num_failed == 200
    assert figures.summary.ttft.count == figures.summary.num_successes
    assert figures.summary.good_fraction == figures.summary.num_successes / 200


def test_a_server_where_nothing_succeeds_gives_no_valid_run():
    async def scenario() -> BenchRun:
        async with Stub() as stub:
            return await bench(stub, before=lambda: setattr(stub, "fails_every", 1))

    run = asyncio.run(scenario())
    assert not run.is_valid
    assert raised(run, "no-success")


def test_a_warm_cache_is_noticed_and_a_fresh_nonce_avoids_it():
    async def scenario() -> list[BenchRun]:
        async with Stub() as stub:
            return [await bench(stub, nonce=nonce) for nonce in ("a", "a", "b")]

    first, again, fresh = asyncio.run(scenario())
    assert not raised(first, *SERVER_FAULTS)
    assert raised(again, *SERVER_FAULTS) == {"warm-cache"}
    assert again.figures.cache.hit_fraction > 0.5
    assert not raised(fresh, *SERVER_FAULTS)


def test_what_the_workload_repeats_is_no_warm_cache():
    recipe = replace(RECIPE, prefix=SharedPrefix(160, 2))
    run = run_bench(Stub(), recipe)
    assert run.figures.cache.hit_fraction > 0.6
    assert run.figures.cache.repeated_fraction >= run.figures.cache.hit_fraction
    assert not raised(run, *SERVER_FAULTS)


def test_turns_carry_their_history_and_its_answers():
    async def scenario() -> tuple[Stub, BenchRun]:
        async with Stub() as stub:
            run = await bench(stub, replace(RECIPE, num_requests=3), turns=3)
            return stub, run

    stub, run = asyncio.run(scenario())
    assert len(run.answers) == 9
    assert not raised(run, *SERVER_FAULTS)
    last = [body["messages"] for body in stub.bodies if len(body["messages"]) == 5]
    assert len(last) == 3
    for messages in last:
        assert [one["role"] for one in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert messages[1]["content"].startswith("word")
        assert any(body["messages"] == messages[:3] for body in stub.bodies)


def test_wrong_prompt_lengths_are_noticed():
    run = run_bench(Stub(tokens_a_word=2), replace(RECIPE, prompts=Fixed(300), num_requests=8))
    assert raised(run, *SERVER_FAULTS) == {"prompt-lengths"}
    assert run.figures.lengths.prompt_mean > 500


@pytest.mark.parametrize("takes", [True, False])
def test_answers_that_fall_short_are_noticed(takes):
    stub = Stub(short_by=2, takes_ignore_eos=takes)
    run = run_bench(stub, replace(RECIPE, answers=Fixed(10)))
    assert raised(run, *SERVER_FAULTS) == {"short-answers"}
    assert run.figures.lengths.answer_mean == 8
    assert all(takes == ("ignore_eos" in body) for body in stub.bodies[-40:])


@pytest.mark.parametrize(("has_tokenizer", "most"), [(True, 0), (False, 2)])
def test_lengths_are_met_with_and_without_a_tokenizer_to_ask(has_tokenizer, most):
    run = run_bench(Stub(has_tokenizer=has_tokenizer, takes_token_ids=False), route="completions")
    assert run.figures.lengths.prompt_error_max <= most
    costly = run_bench(Stub(has_tokenizer=False, tokens_a_word=3), replace(RECIPE, prompts=Fixed(300)))
    assert costly.figures.lengths.prompt_error_max <= 3
    assert not raised(costly, *SERVER_FAULTS)


def test_without_usage_pieces_are_counted_and_it_is_said():
    run = run_bench(Stub(has_usage=False))
    assert raised(run, *SERVER_FAULTS) == {"no-usage"}
    assert run.figures.summary.num_output_tokens == sum(answer.num_answer_asked for answer in run.answers)


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_server_that_counts_only_whole_answers_gets_prompts_of_the_asked_length(has_tokenizer):
    """Such is one whose streams tell no usage: it is asked once without a stream, and for its tokenizer where it has it."""

    async def scenario() -> tuple[BenchRun, list[int]]:
        stub = Stub(
            has_usage=False, counts_whole=True, has_tokenizer=has_tokenizer, tokenizer=("/extras/tokenize", "input")
        )
        async with stub:
            run = await bench(stub, replace(RECIPE, prompts=Fixed(50)))
            sent = [body["messages"][0]["content"] for body in stub.bodies[-40:]]
            return run, [len(text.replace(",", " ,").replace(".", " .").split()) + TEMPLATE_TOKENS for text in sent]

    run, sent = asyncio.run(scenario())
    assert raised(run, *SERVER_FAULTS) == {"no-usage"}
    assert set(sent) == {50}


def test_a_run_of_which_most_failed_is_not_valid():
    async def scenario() -> BenchRun:
        async with Stub() as stub:
            return await bench(stub, before=lambda: setattr(stub, "breaks_every", 2))

    run = asyncio.run(scenario())
    assert not run.is_valid
    assert raised(run, "mostly-failed", "failures") == {"mostly-failed"}
    assert list(run.figures.failures) == ["the server closed the connection early, in the middle of an answer"]


def test_other_guests_of_the_server_are_noticed():
    assert raised(run_bench(Stub(num_others=1)), *SERVER_FAULTS) == {"not-alone"}
    assert run_bench(Stub(has_metrics=False)).figures.cache.hit_fraction is None


def test_more_than_the_server_carries_is_noticed_and_stopped():
    recipe = replace(RECIPE, arrivals=Constant(300.0), answers=Fixed(1), num_requests=3000)
    run = run_bench(Stub(first_s=0.02, capacity=1), recipe, OPEN)
    assert raised(run, "over-saturated")
    assert run.figures.num_unsent > 0
    assert run.figures.num_abandoned > 0
    assert run.figures.num_requests + run.figures.num_unsent == 3000


def test_a_stall_is_felt_by_all_who_came_in_it():
    """Coordinated omission: who waits for answers before asking again hardly meets a stall; who comes at a rate does."""
    recipe = replace(RECIPE, arrivals=Constant(50.0), answers=Fixed(1), num_requests=100)

    async def scenario(shape: LoadShape) -> BenchRun:
        async with Stub(first_s=0.005, stalls_at=20) as stub:
            return await bench(stub, recipe, shape)

    open_run, closed_run = asyncio.run(scenario(OPEN)), asyncio.run(scenario(LoadShape(users=1)))
    slow = [sum(answer.timeline().ttft_s > 0.5 for answer in run.answers) for run in (open_run, closed_run)]
    assert slow[0] >= 20
    assert 1 <= slow[1] < slow[0] / 3
    assert open_run.figures.summary.ttft.p99 > 0.9
    assert raised(closed_run, "closed-loop")
    assert not raised(open_run, "closed-loop")


def test_a_client_that_does_not_keep_up_says_so_and_its_delays_are_not_hidden():
    recipe = replace(RECIPE, arrivals=Constant(100.0), answers=Fixed(1), num_requests=60)

    def block(name: str, progress: LoadProgress) -> None:
        time.sleep(0.15)

    run = run_bench(Stub(), recipe, OPEN, watch=block)
    assert not run.is_valid
    (flag,) = (flag for flag in run.flags if flag.level == "invalid")
    assert flag.name == "client-bound"
    assert run.figures.health.lag_p99_s > 0.1
    # Requests that were due while the client slept count their wait from when they were due.
    assert max(answer.timeline().ttft_s for answer in run.answers) > 0.1


def test_an_answer_that_never_ends_is_a_failure():
    async def scenario() -> BenchRun:
        async with Stub() as stub:
            shape = replace(USERS, timeout_s=0.3)
            return await bench(
                stub, replace(RECIPE, num_requests=4), shape, before=lambda: setattr(stub, "first_s", 60.0)
            )

    run = asyncio.run(scenario())
    assert run.figures.failures == {"no complete answer within 0.3 s": 4}


DEAD = 30
"""The generation with which a server dies: `find_target` has had a few of them."""


@pytest.mark.parametrize(
    ("arrivals", "shape"), [(AtOnce(), USERS), (Constant(100.0), replace(OPEN, patience_s=0.3))], ids=["users", "open"]
)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_server_that_dies_is_told_as_that_and_awaited_only_so_long(arrivals, shape, turns):
    run = run_bench(
        Stub(token_s=0.01, dies_at=DEAD), replace(RECIPE, arrivals=arrivals, num_requests=1000), shape, turns=turns
    )
    assert run.fault == "server-gone"
    assert not raised(run, "over-saturated")
    figures = run.figures
    assert 0 < figures.summary.num_successes < DEAD
    num_ended = figures.num_failed + figures.summary.num_successes
    assert num_ended + figures.num_abandoned == figures.num_requests
    assert figures.silence.from_s < figures.silence.to_s
    if shape.users is None:
        assert figures.num_unsent > 500


def test_a_server_that_stands_still_is_given_up_once_each_user_has_waited_in_vain():
    async def scenario() -> BenchRun:
        async with Stub() as stub:
            shape = replace(USERS, timeout_s=0.2, patience_s=0.2)
            return await bench(
                stub, replace(RECIPE, num_requests=400), shape, before=lambda: setattr(stub, "first_s", 60.0)
            )

    run = asyncio.run(scenario())
    assert run.fault == "server-gone"
    assert run.figures.num_unsent > 300


@pytest.mark.parametrize(("users", "turns"), [(1, 1), (4, 1), (4, 3)])
def test_a_server_that_hangs_for_good_is_given_up_long_before_its_requests_run_out_of_time(users, turns):
    run = run_bench(
        Stub(stalls_at=20, stalls_s=60.0),
        replace(RECIPE, num_requests=400),
        replace(USERS, users=users, timeout_s=10.0, hush_s=0.4),
        turns=turns,
    )
    assert run.fault == "server-gone"
    assert run.is_in_vain
    figures = run.figures
    assert (figures.num_failed, figures.num_abandoned) == (0, users)
    assert "unanswered" in run.flags[0].text


@pytest.mark.parametrize(
    "stub",
    [Stub(first_s=2.2), Stub(stalls_at=12, stalls_s=1.2)],
    ids=["slow at its prompts", "held up for less than it is awaited"],
)
def test_a_server_that_is_merely_slow_is_awaited(stub):
    first_s, stub.first_s = stub.first_s, 0.0

    async def scenario() -> BenchRun:
        async with stub:
            return await bench(
                stub,
                replace(RECIPE, num_requests=4 if first_s else 40),
                replace(USERS, hush_s=1.0),
                before=lambda: setattr(stub, "first_s", first_s),
            )

    run = asyncio.run(scenario())
    assert run.figures.summary.num_successes == run.figures.num_requests == (4 if first_s else 40)
    assert not raised(run, "server-gone")


def test_a_server_that_hangs_while_it_is_warmed_up_is_told_at_once():
    async def scenario() -> None:
        async with Stub(stalls_at=12, stalls_s=60.0) as stub:
            client = Client(endpoint_of(stub.url))
            target = await find_target(client, "", "chat", "n")
            session = Session(client, target, replace(USERS, hush_s=0.4), KneeGoal(Slo()), lambda name, rate: plan)
            await session.warm_up(plan)

    plan = plan_of_recipe(replace(RECIPE, num_requests=20), 1, name="warm up ")
    with pytest.raises(ConfigError, match="stopped answering while it was warmed up"):
        asyncio.run(scenario())


@pytest.mark.parametrize("dies_at", [6, 40], ids=["one at a time", "at a rate"])
def test_a_search_whose_server_dies_blames_neither_its_targets_nor_the_client(dies_at):
    knee, runs = search(Stub(first_s=0.02, dies_at=dies_at), Slo(ttft_s=5.0), trial_s=0.5)
    assert knee.trials[-1].fault == "server-gone"
    assert knee.beyond is None
    assert not knee.is_bounded_by_client
    assert len(runs) == len(knee.trials)


def search(stub: Stub, slo: Slo, *, trial_s: float, start: float | None = None) -> tuple[Knee | None, list[BenchRun]]:
    async def scenario():
        async with stub:
            client = Client(endpoint_of(stub.url))
            target = await find_target(client, "", "chat", "n")

            def make(run: str, rate: float | None) -> TrafficPlan:
                arrivals = AtOnce() if rate is None else Constant(rate)
                number = 40 if rate is None else max(int(rate * trial_s), 20)
                recipe = Recipe(arrivals, Fixed(20), Fixed(1), num_requests=number)
                return plan_of_recipe(recipe, 1, name=f"{run} ")

            session = Session(client, target, OPEN, KneeGoal(slo), make)
            try:
                return await session.find_knee(start, trial_s)
            finally:
                client.close()

    return asyncio.run(scenario())


@pytest.mark.slow
def test_a_search_finds_the_rate_that_the_server_carries():
    knee, runs = search(Stub(first_s=0.0125, capacity=2), Slo(ttft_s=0.2), trial_s=0.5)
    # Two at a time, 12.5 ms each, are 160 a second; a busy machine may find less, and may say that the client was at its end.
    assert knee.rate is None or knee.rate <= 260.0
    assert knee.is_bounded_by_client or knee.beyond is not None
    assert [run.figures.rate for run in runs] == [None if trial.is_alone else trial.rate for trial in knee.trials]
    assert [trial.is_alone for trial in knee.trials] == [True] + [False] * (len(runs) - 1)
    assert len(knee.trials) <= 1 + MOST_TRIALS


def test_a_search_ends_at_once_where_even_one_request_at_a_time_is_too_slow():
    knee, runs = search(Stub(first_s=0.1), Slo(ttft_s=0.05), trial_s=0.5)
    assert (knee.rate, knee.beyond) == (None, None)
    assert len(runs) == len(knee.trials) == 1
    assert len(runs[0].answers) <= 6


@pytest.mark.slow
def test_a_rate_that_must_fail_is_given_up_before_all_was_sent():
    knee, runs = search(Stub(first_s=0.0125, capacity=1), Slo(ttft_s=0.1), trial_s=0.5, start=300.0)
    assert knee.rate is None or knee.rate < 300.0
    failed = next(run for run in runs if run.figures.rate == 300.0)
    assert failed.figures.num_unsent + failed.figures.num_abandoned > 0
    assert {flag.name for flag in failed.flags} & {"hopeless", "over-saturated"}
    assert not KneeGoal(Slo()).is_met(failed)


def test_a_cancelled_run_hands_back_what_it_has():
    async def scenario() -> BenchRun:
        async with Stub(token_s=0.02) as stub:
            task = asyncio.create_task(bench(stub, replace(RECIPE, num_requests=4000), watch=enough))
            return await task

    def enough(name: str, progress: LoadProgress) -> None:
        if progress.num_ended >= 5:
            for task in asyncio.all_tasks():
                if task.get_coro().__name__ == "bench":
                    task.cancel()

    run = asyncio.run(scenario())
    assert run.figures.is_interrupted
    assert run.figures.summary.num_successes >= 5
    assert run.figures.num_unsent > 0
    assert raised(run, "interrupted")


def test_a_server_that_is_not_there_or_refuses_is_an_error_with_a_way_out():
    async def scenario(**options) -> None:
        async with Stub(**options) as stub:
            await find_target(Client(endpoint_of(stub.url)), "", "chat", "n")

    with pytest.raises(ConfigError, match="the boiler is out"):
        asyncio.run(scenario(fails_every=1))
    with pytest.raises(ConfigError, match="is the server running"):
        asyncio.run(find_target(Client(endpoint_of("http://127.0.0.1:9")), "m", "chat", "n"))


def test_what_the_server_adds_to_a_prompt_is_found_out():
    async def scenario():
        async with Stub() as stub:
            return await find_target(Client(endpoint_of(stub.url)), "", "chat", "n")

    target = asyncio.run(scenario())
    assert target.vocabulary.overhead == TEMPLATE_TOKENS
    assert (target.model, target.has_tokenizer, target.reports_usage, target.dialect.is_exact) == (
        "stub",
        True,
        True,
        True,
    )
