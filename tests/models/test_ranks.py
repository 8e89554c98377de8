"""How a model is dealt out: parts make up the whole, and what cannot be cut is refused by a way out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.models.catalog import find
from penstock.runtime.models.ranks import Ranks, share
from penstock.runtime.models.sharding import shard_model
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, MoE, Norm


def spec_of(heads: int, kv_heads: int, width: int = 96, experts: int = 0, layers: int = 4) -> ModelSpec:
    mlp = MoE(experts, 2, GatedMLP(width, "silu"), True) if experts else GatedMLP(width, "silu")
    layer = Layer(GQA(heads, kv_heads, 16, None, 0.25), mlp)
    return ModelSpec("llama", 64, 100, (layer,) * layers, Norm(), 256)


@given(st.integers(1, 500), st.integers(1, 16), st.sampled_from([1, 32]))
def test_shares_follow_each_other_and_differ_by_a_unit_at_most(total: int, count: int, unit: int) -> None:
    shares = [share(total, count, index, unit) for index in range(count)]
    assert [number for each in shares for number in each] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= (unit if total % unit == 0 else 1)


@given(st.sampled_from([(9, 3), (8, 8), (8, 2), (4, 1), (14, 2)]), st.integers(1, 8))
def test_query_heads_lie_with_the_keys_they_read(heads: tuple[int, int], tensor: int) -> None:
    spec, ranks = spec_of(*heads), Ranks(tensor)
    try:
        ranks.check(spec)
    except ConfigError:
        return
    attention = spec.layers[0].attention
    held = [ranks.place(rank).heads(attention) for rank in range(tensor)]
    assert [head for each in held for head in each] == list(range(heads[0]))
    for rank in range(tensor):
        place = ranks.place(rank)
        needed = {head * heads[1] // heads[0] for head in place.heads(attention)}
        assert needed == set(place.kv_heads(attention))


@pytest.mark.parametrize(
    "ranks", [Ranks(2), Ranks(pipeline=3), Ranks(2, 2), Ranks(expert=2), Ranks(4, 1, 2), Ranks(2, 2, 4)]
)
def test_experts_layers_and_columns_are_each_held_once(ranks: Ranks) -> None:
    spec = spec_of(8, 4, experts=6, layers=5)
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MoE)
    places = [ranks.place(rank) for rank in range(ranks.num_ranks)]
    assert sorted({number for place in places for number in place.layers(5)}) == list(range(5))
    for stage in range(ranks.pipeline):
        columns = [place for place in places if place.stage == stage]
        cells = [(e, w) for place in columns for e in place.experts(mlp) for w in place.expert_width(mlp)]
        assert sorted(cells) == [(e, w) for e in range(6) for w in range(96)]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
def test_parts_weigh_what_the_whole_does(name: str) -> None:
    """Norms, routers and a tied matrix of a last stage are held more than once: less than a percent."""
    spec = find(name)
    for ranks in (Ranks(2), Ranks(4), Ranks(pipeline=2), Ranks(2, 2)):
        parts = sum(shard_model(spec, ranks, rank).num_parameters for rank in range(ranks.num_ranks))
        assert spec.num_parameters <= parts <= spec.num_parameters * 1.01


@pytest.mark.parametrize(
    ("ranks", "spec", "words"),
    [
        (Ranks(4), spec_of(9, 3), "--tensor 4 cannot share 9 attention heads of 3 key-value heads; choose 3 or 9"),
        (Ranks(3), spec_of(8, 2), "--tensor 3 cannot share 8 attention heads of 2 key-value heads; choose 2 or 4"),
        (Ranks(pipeline=5), spec_of(4, 4), "--pipeline 5 for 4 layers"),
        (Ranks(expert=2), spec_of(4, 4), "the model has no experts"),
        (Ranks(expert=8), spec_of(4, 4, experts=6), "--expert 8 for 6 experts"),
        (Ranks(2), replace(spec_of(4, 4), pooling="mean"), "are for models that generate"),
        (Ranks(pipeline=2), find("deepseek-v3"), "this model has MLA; leave them at 1"),
    ],
)
def test_what_cannot_be_cut_is_refused(ranks: Ranks, spec: ModelSpec, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        shard_model(spec, ranks, 0)


def test_counts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="one must divide the other"):
        Ranks(tensor=4, expert=6)
