"""Laws of memory: weights by their width, workspace by the largest step."""

import pytest

from penstock.cost.memory import weight_bytes, workspace_bytes
from penstock.cost.precision import Precision
from penstock.models import catalog


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
    assert larger < 0.5 * weight_bytes(spec, Precision())
