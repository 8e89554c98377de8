"""Does it fit: known models on known cards, and laws of memory."""

from dataclasses import replace

import pytest
import torch

from penstock.errors import ConfigError
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.models.catalog import find as find_model
from penstock.tools.cost.hardware import find
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.memory import weight_bytes
from penstock.tools.cost.precision import precision_of
from penstock.tools.planner.fit import fit_of, kv_by_attention
from tests.planner.candidates import make_candidate, make_demand

GIB = 2**30
SIZES = make_demand().sizes


def fit(**rest):
    candidate = make_candidate(**{"max_sequences": 64, "max_batch_tokens": 2048} | rest)
    return fit_of(candidate, SIZES)


@pytest.mark.parametrize(
    ("weights", "kv", "fits", "too_small"),
    [("bf16", "bf16", 2, 1), ("fp8", "fp8", 1, None), ("int4", "bf16", 1, None)],
)
def test_80_gb_cards_for_a_70b_model(weights, kv, fits, too_small):
    found = fit(model="llama-3-70b", device="h100", layout=Layout(tensor=fits), weights=weights, kv=kv)
    assert found.num_tokens > 0
    if too_small is not None:
        with pytest.raises(ConfigError, match="no memory is left for the KV cache"):
            fit(model="llama-3-70b", device="h100", layout=Layout(tensor=too_small), weights=weights, kv=kv)


def test_what_an_fp8_70b_model_leaves_for_kv_on_one_card():
    """79.2 GiB x 0.9, less 67.7 GiB of weights (embedding and output matrix have 16 bits) and what steps need: some 2 GiB."""
    found = fit(model="llama-3-70b", device="h100", weights="fp8", kv="fp8")
    assert found.total_weight_bytes == 72_655_052_800 == 70_553_706_496 + 2 * 128_256 * 8192
    assert found.kv_bytes_per_token == 163_840
    expected = int(0.9 * find("h100").memory_bytes) - 72_655_052_800 - found.activation_bytes - found.reserve_bytes
    assert 1 * GIB < expected < 3 * GIB
    assert found.num_tokens == expected // (16 * 163_840) * 16


def test_the_table_adds_up_to_the_card():
    found = fit(model="llama-3-8b", device="a100-80", max_sequences=256)
    taken = found.total_weight_bytes + found.activation_bytes + found.reserve_bytes + found.kv_bytes
    block = 16 * found.kv_bytes_per_token
    assert 0 <= found.memory_bytes - found.margin_bytes - taken < block


def test_experts_are_told_apart():
    found = fit(model="mixtral-8x7b", device="h100", layout=Layout(tensor=2))
    experts = 32 * 8 * 3 * 4096 * 14_336
    assert found.weight_bytes["experts"] / found.total_weight_bytes == pytest.approx(experts / 46_702_792_704, rel=1e-6)


def test_kv_is_told_by_kind_of_attention():
    candidates = {name: make_candidate(name).spec for name in ("gemma-3-27b", "deepseek-v3", "llama-2-7b")}
    by_kind = {name: kv_by_attention(spec, 2.0) for name, spec in candidates.items()}
    assert by_kind["gemma-3-27b"] == {"grouped heads, 1,024 tokens back": 52 * 8192, "grouped heads": 10 * 8192}
    assert by_kind["deepseek-v3"] == {"latent": 70_272}
    assert by_kind["llama-2-7b"] == {"multi-head": 524_288}


def test_windows_let_more_in_where_one_device_computes_the_model():
    """Ranks keep windows whole."""
    long = make_demand(prompts=(8000, 8000), answers=(100, 100)).sizes
    gemma, shared = (fit_of(make_candidate("gemma-3-4b", "h100", layout=Layout(tensor=n)), long) for n in (1, 2))
    llama = fit_of(make_candidate("llama-3.1-8b", "h100"), long)
    assert 0.9 * gemma.users_in_sight < gemma.users_mean <= gemma.users_in_sight
    assert shared.users_in_sight > 3 * shared.users_mean
    assert llama.users_in_sight == pytest.approx(llama.users_mean, abs=1)


def test_states_bound_users_whatever_their_length():
    short, long = (make_demand(prompts=(n, n), answers=(100, 100)).sizes for n in (100, 4000))
    granite = make_candidate("granite-4.0-h-tiny", "h100")
    found = [fit_of(granite, sizes) for sizes in (short, long)]
    assert [one.users_mean for one in found] == [granite.sizing.groups.num_states] * 2
    assert all(one.users_in_sight == one.users_mean for one in found)


def test_more_memory_never_holds_fewer_users():
    device = find("l4")
    grown = [replace(device, memory_bytes=int(device.memory_bytes * factor)) for factor in (1.0, 1.1, 1.5, 3.0)]
    users = [fit(model="llama-3.2-3b", device=one).users_mean for one in grown]
    assert users == sorted(users)
    assert users[-1] > users[0]


def test_smaller_numbers_never_hold_fewer_users():
    wide, narrow = (fit(model="llama-3.1-8b", device="h100", kv=kv).users_mean for kv in ("bf16", "fp8"))
    assert narrow == pytest.approx(2 * wide, abs=2)
    light = fit(model="llama-3.1-8b", device="h100", weights="fp8").users_mean
    assert light > wide


def test_a_cpu_takes_no_more_than_its_engine_would():
    """A gibibyte, or one whole context."""
    found = fit(model="smollm2-135m", device="cloud-2core")
    assert GIB <= found.kv_bytes < GIB + 16 * found.kv_bytes_per_token


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_weights_are_counted_as_an_engine_holds_them(weights):
    spec = find_model("smollm2-135m")
    spec = replace(spec, layers=spec.layers[:3])
    finish = quantize_fp8 if weights == "fp8" else None
    model = dummy_model(spec, torch.device("cpu"), torch.bfloat16, finish=finish)
    held = sum(parameter.nbytes for parameter in model.parameters())
    counted = weight_bytes(spec, precision_of(weights, "bf16", find("h100").achievable))
    assert held == pytest.approx(counted, rel=0.01)
