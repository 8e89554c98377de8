"""Laws of the hardware table."""

import pytest

from penstock.errors import ConfigError
from penstock.tools.cost.hardware import ALIASES, HARDWARE, Ceilings, Flops, find


def ridge(ceilings: Ceilings) -> float:
    """Operations per byte above which work is bound by compute, below by memory."""
    return ceilings.flops_in("bf16") / ceilings.bandwidth_bytes_per_s


def test_ridges_are_those_of_the_textbook():
    assert ridge(find("h100-sxm").peak) == pytest.approx(295, abs=0.5)
    assert ridge(find("a100-40").peak) == pytest.approx(201, abs=1)
    assert ridge(find("a100-80").peak) == pytest.approx(153, abs=1)


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=HARDWARE)
def test_every_device_reaches_less_than_its_peak_and_names_its_source(hardware):
    peak, achievable = hardware.peak, hardware.achievable
    assert 0 < achievable.bandwidth_bytes_per_s <= peak.bandwidth_bytes_per_s
    for number_format in ("fp32", "bf16", "fp16", "fp8", "int8"):
        assert 0 <= getattr(achievable.flops, number_format) <= getattr(peak.flops, number_format)
    assert peak.flops.fp32 > 0
    assert hardware.source
    assert 8e9 < hardware.memory_bytes < 1e12
    assert find(hardware.name.upper()) is hardware


def test_narrower_numbers_are_never_slower():
    for hardware in HARDWARE.values():
        known = [
            flops for flops in (hardware.peak.flops.fp32, hardware.peak.flops.bf16, hardware.peak.flops.int8) if flops
        ]
        assert known == sorted(known), hardware.name


def test_measured_ceilings_replace_the_assumed_shares():
    achievable = find("h200").achievable
    assert achievable.bandwidth_bytes_per_s == 4.29e12
    assert achievable.flops.bf16 == 750e12


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean h100-sxm"):
        find("h100-smx")
    with pytest.raises(ConfigError, match="choose one of"):
        find("abacus")


def test_short_names_mean_the_common_kind():
    assert {name: find(name).name for name in ALIASES} == ALIASES


def test_a_missing_number_format_names_the_others():
    with pytest.raises(ConfigError, match="does not compute in bf16; choose fp32 or fp16 or int8"):
        find("t4").peak.flops_in("bf16")


def test_scaling_is_per_roof():
    ceilings = Ceilings(10.0, Flops(bf16=100.0)).scaled(compute=0.5, bandwidth=2.0)
    assert (ceilings.bandwidth_bytes_per_s, ceilings.flops.bf16, ceilings.flops.fp8) == (20.0, 50.0, 0.0)
