"""What a machine reaches is measured without leaving a trace, and is no more than work done over time."""

import torch

from penstock.runtime.execution.ceilings import measure_ceilings, product_rate


def test_rates_are_measured_and_threads_are_given_back():
    usual = torch.get_num_threads()
    reached = measure_ceilings(torch.device("cpu"), 1 << 20, 1)
    assert torch.get_num_threads() == usual
    assert set(reached.flops) == {"fp32", "bf16", "fp16", "int8"}
    assert reached.flops["fp32"] > 0.0
    assert all(0.0 <= rate < 1e15 for rate in reached.flops.values())
    assert 0.0 < reached.large_bytes_per_s < 1e13
    assert reached.model_bytes_per_s > 0.0


def test_a_quick_look_leaves_no_trace_either():
    usual = torch.get_num_threads()
    assert 1e8 < product_rate(1) < 1e15
    assert torch.get_num_threads() == usual
