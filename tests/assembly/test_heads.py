"""A model whose heads no kernel of a GPU can multiply is refused when it is loaded, not at every request."""

from dataclasses import replace

import pytest

from penstock.assembly.engine import check_heads
from penstock.errors import ConfigError
from penstock.runtime.models.catalog import find


@pytest.mark.parametrize(("head_dim", "fits"), [(4, False), (15, False), (16, True), (128, True)])
def test_heads_are_as_wide_as_a_gpu_multiplies(head_dim: int, fits: bool) -> None:
    spec = find("llama-3.1-8b")
    layer = replace(spec.layers[0], attention=replace(spec.layers[0].attention, head_dim=head_dim))
    narrow = replace(spec, layers=(*spec.layers[1:], layer))
    if fits:
        check_heads(narrow)
        return
    with pytest.raises(ConfigError, match=f"heads of {head_dim} numbers .* --device cpu"):
        check_heads(narrow)
