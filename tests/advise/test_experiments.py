"""The guided experiments hold what they promise, on the engine's own scheduler in virtual time."""

import shlex
from functools import cache

import pytest

from penstock.cli.simulate import command
from penstock.console.args import build, parse
from penstock.tools.sim.queueing import queue_figures
from penstock.tools.sim.simulation import simulate
from tests.advise.experiments import BASE, EXPERIMENTS, merged_flags

BY_ID = {one.id: one for one in EXPERIMENTS}


def config_of(flags: str) -> command.Config:
    return build(command.Config, parse(command.Config, merged_flags(BASE, flags).split()).values)


@cache
def run(flags: str, with_queue: bool = False):
    config = config_of(flags)
    basis = command.roofline_basis(config)
    fleet, workload = basis.make_fleet(config), config.load.workload(basis.vocab_size)
    result = simulate(fleet, workload, config.target)
    return result, queue_figures(fleet, workload, result) if with_queue else None


def runs(id: str):
    return {one.name: run(one.flags)[0] for one in BY_ID[id].runs}


def ttft_ms(result) -> float:
    return 1e3 * result.summary.ttft.p50


def tpot_ms(result) -> float:
    return 1e3 * result.summary.tpot.p50


def test_every_run_is_a_command_that_simulate_takes() -> None:
    for experiment in EXPERIMENTS:
        for one in experiment.runs:
            program, name, *words = shlex.split(one.command)
            assert (program, name) == ("penstock", "simulate")
            build(command.Config, parse(command.Config, words).values)


def test_a_later_flag_wins() -> None:
    assert merged_flags("--rate 10 --json --seed 1", "--rate 0") == "--json --seed 1 --rate 0"


def test_baseline_the_queue_grows_and_hardly_anybody_is_served_well() -> None:
    result, queue = run(BY_ID["baseline"].runs[0].flags, True)
    assert not queue.stability.is_stable
    assert queue.rho > 1.0
    assert result.summary.good_fraction < 0.05


def test_continuous_batching_lets_nobody_wait() -> None:
    result, queue = run(BY_ID["continuous"].runs[0].flags, True)
    assert queue.stability.is_stable
    assert queue.stability.waiting_last < 5
    assert sum(one.mean_waiting for one in result.replicas) < 1.0
    assert result.summary.good_fraction > 0.95


def test_the_prefix_cache_shortens_the_first_token_more_than_fivefold() -> None:
    found = runs("prefix")
    assert ttft_ms(found["without"]) > 5 * ttft_ms(found["with"])
    cached = found["with"].summary.num_cached_tokens / found["with"].summary.num_prompt_tokens
    assert cached > 0.9


def test_speculation_halves_the_time_a_token_and_leaves_the_first_alone() -> None:
    found = runs("speculation")
    assert tpot_ms(found["plain"]) > 2 * tpot_ms(found["drafts"])
    assert ttft_ms(found["drafts"]) == pytest.approx(ttft_ms(found["plain"]), rel=0.25)


@pytest.mark.slow
def test_tensor_groups_quicken_tokens_and_replicas_add_up() -> None:
    found = runs("devices")
    speed = {name: result.summary.output_tokens_per_s for name, result in found.items()}
    assert speed["one"] < speed["tensor 4"] < 4 * speed["one"]
    assert speed["tensor 4"] < speed["tensor 8"] < 8 * speed["one"]
    assert tpot_ms(found["tensor 8"]) < tpot_ms(found["tensor 4"]) < tpot_ms(found["one"]) / 2
    for count in (4, 8):
        assert speed[f"replicas {count}"] == pytest.approx(count * speed["one"], rel=0.15)
        assert tpot_ms(found[f"replicas {count}"]) == pytest.approx(tpot_ms(found["one"]), rel=0.1)


@pytest.mark.slow
def test_the_breaking_point_is_sudden() -> None:
    found = runs("breaking-point")
    good = [result.summary.good_fraction for result in found.values()]
    assert good == sorted(good, reverse=True)
    assert good[0] > 0.99
    assert good[1] > 0.95
    assert good[-1] < 0.3
    assert 1e3 * found["rate 25"].summary.ttft.p99 > 100 * 1e3 * found["rate 18"].summary.ttft.p99


@pytest.mark.slow
def test_larger_models_hit_a_wall_and_fewer_bytes_move_it() -> None:
    found = runs("size-wall")
    eight = run(BY_ID["devices"].runs[4].flags)[0].summary.output_tokens_per_s
    speed = {name: result.summary.output_tokens_per_s for name, result in found.items()}
    assert eight > 4 * speed["bf16 on 8"]
    assert speed["int8 on 4, twice"] > 1.3 * speed["bf16 on 8"]
    assert speed["int4 on 1, eight times"] > speed["int8 on 4, twice"]
    assert found["int4 on 1, eight times"].summary.good_fraction < 0.05
