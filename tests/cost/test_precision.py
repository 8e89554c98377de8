"""Laws of number formats."""

import pytest

from penstock.errors import ConfigError
from penstock.tools.cost.hardware import HARDWARE, find
from penstock.tools.cost.precision import Precision, precision_of


@pytest.mark.parametrize("name", HARDWARE)
def test_whole_number_weights_run_everywhere(name):
    ceilings = HARDWARE[name].achievable
    for weights in ("int8", "int4"):
        precision = precision_of(weights, "int8", ceilings)
        assert ceilings.flops_in(precision.compute) > 0
        assert precision.weight_bytes <= 1.0
        assert precision.kv_bytes == 1.0


def test_floats_are_multiplied_as_they_are_held():
    ceilings = find("h100-sxm").peak
    assert precision_of("fp8", "fp8", ceilings) == Precision(1.0, 1.0, "fp8", 2.0)
    assert precision_of("bf16", "bf16", ceilings) == Precision()
    with pytest.raises(ConfigError, match="does not compute in bf16"):
        precision_of("bf16", "fp16", find("t4").peak)
    assert precision_of("int4", "fp16", find("t4").peak).compute == "fp16"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_sizes_are_refused(value):
    with pytest.raises(ConfigError):
        Precision(weight_bytes=value)
    with pytest.raises(ConfigError):
        Precision(kv_bytes=value)
