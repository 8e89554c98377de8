"""Planner and engine agree about shards: what a layout's fullest device holds is what the fullest rank builds and loads."""

import pytest

from penstock.errors import ConfigError
from penstock.runtime.models.catalog import CONFIGS, find
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import shard_model
from penstock.runtime.models.spec import GQA
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.memory import kv_fraction, weight_bytes
from penstock.tools.cost.precision import Precision

LAYOUTS = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 1), (2, 4, 1), (4, 1, 4), (4, 1, 2), (2, 1, 8)]
SPLIT = [name for name in CONFIGS if all(isinstance(layer.attention, GQA) for layer in find(name).layers)]


@pytest.mark.parametrize("name", SPLIT)
def test_a_layout_weighs_what_its_fullest_rank_does(name: str) -> None:
    spec, num_compared = find(name), 0
    for tensor, pipeline, expert in LAYOUTS:
        ranks = Ranks(tensor, pipeline, expert)
        try:
            layout = Layout(tensor, pipeline, max(1, expert // tensor), expert)
            layout.check(spec)
            shards = [shard_model(spec, ranks, rank) for rank in range(ranks.num_ranks)]
        except ConfigError:
            continue
        held = max(shard.num_parameters for shard in shards)
        assert weight_bytes(spec, Precision(), layout) == pytest.approx(2 * held, rel=0.01), (tensor, pipeline, expert)
        values = [sum(layer.attention.kv_values_per_token for layer in shard.spec.layers) for shard in shards]
        whole = sum(layer.attention.kv_values_per_token for layer in spec.layers)
        assert kv_fraction(spec, layout) == pytest.approx(max(values) / whole, rel=0.01), (tensor, pipeline, expert)
        num_compared += 1
    assert num_compared > 1


@pytest.mark.parametrize("name", CONFIGS)
def test_whoever_accepts_more_ways_to_cut_is_the_engine(name: str) -> None:
    """A layout that the planner proposes is one that ranks can be made of, where they can be made of the model at all."""
    spec = find(name)
    if name not in SPLIT:
        return
    for tensor, pipeline, expert in LAYOUTS:
        try:
            Layout(tensor, pipeline, max(1, expert // tensor), expert).check(spec)
        except ConfigError:
            continue
        Ranks(tensor, pipeline, expert).check(spec)
