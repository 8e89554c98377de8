"""Laws of memory: weights by their width, workspace by the largest step."""

from dataclasses import replace

import pytest

from penstock.runtime.models import catalog
from penstock.tools.cost.memory import SLACK_BYTES, activation_bytes, weight_bytes, workspace_bytes
from penstock.tools.cost.precision import Precision


def test_weights_of_llama_70b():
    spec = catalog.find("llama-3.1-70b")
    assert weight_bytes(spec, Precision()) == pytest.approx(141e9, rel=0.01)
    assert weight_bytes(spec, Precision(weight_bytes=1.0)) == pytest.approx(70.6e9, rel=0.01)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt2"])
def test_workspace_grows_with_the_step_and_stays_small_beside_the_weights(name):
    spec = catalog.find(name)
    small, larger = workspace_bytes(spec, 512, 64), workspace_bytes(spec, 2048, 64)
    assert 0 < small < larger
    assert workspace_bytes(spec, 512, 256) > small
    assert larger - SLACK_BYTES < weight_bytes(spec, Precision())


def test_what_is_set_aside_is_what_the_engine_was_seen_to_set_aside():
    """benchmarks/results/gpu-8b.json, gpu-0.6b.json: steps of 8,192 tokens, 256 sequences."""
    for name, gib in (("llama-3.1-8b", 4.041), ("qwen3-0.6b", 2.628)):
        assert workspace_bytes(catalog.find(name), 8192, 256) / 2**30 == pytest.approx(gib, abs=0.001)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b"])
def test_a_step_of_a_mixture_holds_what_all_chosen_experts_make_of_a_token(name):
    """As much as a dense model whose MLP is as wide as the chosen experts side by side."""
    spec = catalog.find(name)
    mixture = spec.layers[0].mlp
    dense = replace(mixture.expert, width=mixture.num_active * mixture.expert.width)
    alike = replace(spec, layers=tuple(replace(layer, mlp=dense) for layer in spec.layers))
    assert activation_bytes(spec, 8192) == activation_bytes(alike, 8192)
