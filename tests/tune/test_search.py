"""Laws of the search: the simulator finds a better setting where the default is not best, and keeps the default where it is."""

from dataclasses import replace

import pytest

from penstock.cli.tune.command import room_for
from penstock.cli.tune.forks import forked_scores
from penstock.config import EngineConfig
from penstock.metrics.summary import Slo
from penstock.runtime.core.features import Features
from penstock.runtime.sizing import Sizing
from penstock.tools.bench.report.interval import interval
from penstock.tools.cost.measured.fit import CostRamp
from penstock.tools.cost.measured.ramps import Fitted, MeasuredCost
from penstock.tools.sim.simulation import Fleet
from penstock.tools.tune.evidence import TriedSetting, Tuned, read_tuned, stale
from penstock.tools.tune.search import SettingSearch, finalists, score, shares
from penstock.tools.tune.setting import DEFAULT, Setting, TunedMachine, settings
from penstock.tools.workload.arrivals import Poisson
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.workload import Recipe

SIZING = Sizing(
    num_blocks=4096,
    block_size=16,
    block_bytes=16 << 10,
    max_context=2048,
    weight_bytes=100 << 20,
    workspace_bytes=0,
    free_bytes=8 << 30,
    max_batch_tokens=1024,
)
MACHINE = TunedMachine(is_gpu=False, num_processors=2, num_gpus=0, max_context=2048, measured=SIZING)
MOST = Features(*[10**9] * 9)
COST = Fitted((CostRamp("steps", 0.0, 1.0, 0.01), CostRamp("rows", 0.0, 1e9, 0.0005)), (), False, MOST, 100, {})
"""A step takes 10 ms, and half a millisecond a token: prompts delay those who generate."""
COSTS: dict[int, MeasuredCost] = {}
SLO = Slo(ttft_s=2.0, tpot_s=0.15)


def fleet_of(setting: Setting) -> Fleet:
    cost = COSTS.setdefault(setting.replicas, MeasuredCost(COST.slower(float(setting.replicas))))
    engine = setting.engine(EngineConfig())
    return Fleet(engine, setting.sizing(SIZING), cost, num_replicas=setting.replicas)


def loads(rate: float, count: int = 60):
    recipe = Recipe(Poisson(rate), Uniform(100, 900), Uniform(10, 40), count)
    return [recipe.make(seed) for seed in range(2)]


def test_hundreds_of_settings_are_tried_and_the_default_first() -> None:
    tried = settings(MACHINE)
    assert tried[0] == DEFAULT
    assert len(tried) == len(set(tried)) > 300


def test_a_setting_is_what_serve_is_told() -> None:
    assert DEFAULT.flags == []
    assert Setting(max_batch_tokens=512, kv_memory="2GiB").flags == ["--max-batch-tokens", "512", "--kv-memory", "2GiB"]
    doubled = Setting(block_size=32).sizing(SIZING)
    assert doubled.kv_bytes == SIZING.kv_bytes
    assert doubled.num_blocks == SIZING.num_blocks // 2


@pytest.fixture(scope="module")
def ranked():
    with pytest.MonkeyPatch.context() as patch:  # a few of the hundreds
        patch.setattr("penstock.tools.tune.setting.BATCH_TOKENS", (None, 256))
        patch.setattr("penstock.tools.tune.setting.SEQUENCES", (8, 256))
        return SettingSearch(fleet_of, SLO, MACHINE._replace(num_processors=1)).run(loads(4.0, 40))


def test_the_best_is_better_than_the_default_and_says_why(ranked) -> None:
    best, *_ = finalists(ranked)
    before, after = (score(fleet_of(one), loads(4.0), SLO) for one in (DEFAULT, best.setting))
    assert after.good_fraction > 1.15 * before.good_fraction
    worth = shares(best.setting, fleet_of, loads(4.0), SLO)
    assert max(worth.values()) > 0.0


def test_finalists_differ_in_what_they_do(ranked) -> None:
    chosen = finalists(ranked)
    assert 1 <= len(chosen) <= 4
    assert all(not one.score.is_like(other.score) for one in chosen for other in chosen if one is not other)


def test_a_light_load_is_raised_until_settings_differ() -> None:
    search = SettingSearch(fleet_of, SLO, MACHINE)
    factor = search.strained(lambda factor: loads(0.1 * factor, 20))
    assert factor > 1.0
    assert search.strained(lambda factor: loads(5.0 * factor, 20)) == 1.0


def tuned(winner: bool) -> Tuned:
    gain = interval([0.2, 0.25, 0.22])
    tried = [
        TriedSetting.of(Setting(max_batch_tokens=256), 0.9, 0.8, gain),
        TriedSetting.of(Setting(max_sequences=8), 0.7, 0.6, interval([-0.1, 0.1, 0.0])),
    ]
    return Tuned(
        model="default",
        machine={},
        versions={"penstock": "1"},
        when="today",
        slo="ttft<1s",
        load="some",
        winner=tried[0] if winner else None,
        default_good=0.6,
        tried=tried,
        num_simulated=400,
        simulated_s=12.0,
        measured_s=280.0,
        shares={"max_batch_tokens": 0.1},
    )


def test_evidence_reads_back_and_names_gain_losers_and_when_to_tune_again() -> None:
    found = tuned(winner=True)
    assert read_tuned(found.to_json(), "x").winner == found.winner
    text = found.to_toml()
    assert "max-batch-tokens = 256" in text
    assert "lost: --max-sequences 8" in text
    assert "Tune again" in text
    assert "max-batch-tokens =" not in tuned(winner=False).to_toml()
    assert not stale(found, {"penstock": "1"})
    assert "penstock" in stale(found, {"penstock": "2"})
    assert replace(found, winner=None).gain_words == "the default is best"


def test_copies_of_the_process_find_what_one_finds() -> None:
    tried = [DEFAULT, Setting(max_sequences=8), Setting(max_batch_tokens=64, max_sequences=16)]

    def look(setting: Setting):
        return score(fleet_of(setting), loads(4.0, 20)[:1], SLO)

    assert forked_scores(look, tried) == list(map(look, tried))


def test_servers_run_at_once_where_all_of_them_fit() -> None:
    taking = [DEFAULT, Setting(max_sequences=8)]
    each = SIZING.kv_bytes >> 20
    assert room_for(SIZING, taking) == f"{each}MiB"
    assert room_for(replace(SIZING, free_bytes=1 << 30), taking) == ""
    assert room_for(SIZING, [DEFAULT, Setting(kv_memory="4GiB")]) == "", "what a setting asks for is not shared"


def test_a_size_of_steps_that_is_given_is_not_steered() -> None:
    steered = replace(SIZING, is_mixed=True)
    assert DEFAULT.sizing(steered).is_mixed
    assert not Setting(max_batch_tokens=512).sizing(steered).is_mixed
