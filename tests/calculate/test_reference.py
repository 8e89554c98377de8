"""Worked cases of the trade, each through `penstock calc NAME --json`. GB is 1e9 bytes; figures are rounded as quoted."""

import json

import pytest

from penstock.cli.main import main

GB = 1e9
L70 = "layers=80 heads=64 kv-heads=8 head-dim=128 hidden=8192"
L8 = "layers=32 heads=32 kv-heads=8 head-dim=128 hidden=4096"
L405 = "layers=126 heads=128 kv-heads=8 head-dim=128 hidden=16384"
L7 = "layers=32 heads=32 head-dim=128 hidden=4096"
L13 = "layers=40 heads=40 head-dim=128 hidden=5120"
P70, P8, P405, P7, P13 = (f"parameters={size}e9" for size in (70, 8, 405, 7, 13))
BUSY = "bits=8 --batch 10 --context 4000 --hardware h100"
MATRIX = "rows=8192 columns=8192 --hardware h100"
SMALL_DRAFT = "draft-parameters=2e9 parameters=35e9"
API = "requests=1e6 --prompt 500 --answer 200 api-in=5 api-out=30"
HOST = f"{API} hourly=12 engineer-hours=20 engineer-price=100"

CASES = [
    (f"throughput {P70} bits=16 bandwidth=2e12", {"step_s": 0.0700, "tokens_per_s": 14.3}),
    (f"throughput {P70} bits=4 bandwidth=3.35e12", {"step_s": 0.01045, "tokens_per_s": 95.7}),
    (f"throughput {P70} bits=4 bandwidth=3.35e12 --batch 32", {"tokens_per_s": 3063}),
    (f"throughput {P70} --hardware a100 --prompt 500", {"prefill_s": 0.224}),
    (
        f"throughput {P70} {L70.replace('kv-heads=8', 'kv-heads=64')} {BUSY}",
        {"step_bytes": 174.9 * GB, "step_s": 0.0522},
    ),
    (f"throughput {P70} {L70} {BUSY}", {"step_bytes": 83.1 * GB, "step_s": 0.0248, "mfu": 0.057}),
    (f"throughput {P70} bits=8 --hardware h100", {"mfu": 0.0068}),
    (f"kv {L70}", {"bytes_per_token": 327_680, "total_bytes": 1.342 * GB, "mha_bytes": 10.74 * GB}),
    (f"kv {L70} --context 131072", {"total_bytes": 42.95 * GB}),
    (f"kv {L70} sequences=32", {"total_bytes": 42.9 * GB}),
    (f"kv {L70} --kv int8", {"total_bytes": 0.671 * GB}),
    (f"kv {L8}", {"total_bytes": 0.537 * GB}),
    (f"kv {L405}", {"total_bytes": 2.11 * GB}),
    ("kv --model llama-3.1-405b", {"total_bytes": 2.11 * GB}),
    ("kv layers=120 heads=128 head-dim=128 --context 8192", {"total_bytes": 64.4 * GB}),
    ("kv layers=120 heads=128 head-dim=128 --context 8192", {"total_bytes": 60.0 * 2**30}),
    (f"kv {L7}", {"total_bytes": 2.15 * GB}),
    (f"kv {L13}", {"bytes_per_token": 819_200, "total_bytes": 3.36 * GB}),
    (f"memory {P8} {L8} bits=16", {"total_bytes": 16.67 * GB}),
    (f"memory {P70} {L70} bits=4", {"total_bytes": 36.61 * GB}),
    (f"memory {P70} {L70} bits=16 --context 131072", {"total_bytes": 191.5 * GB}),
    (f"memory {P70} {L70} bits=4 memory=32e9", {"fits": False}),
    (f"memory {P70} {L70} bits=16 memory=141e9", {"fits": False, "total_bytes": 141.6 * GB}),
    (f"memory {P405} {L405} bits=16 memory=80e9", {"devices_by_size": 11, "devices_by_layout": 16}),
    (f"memory {P405} {L405} bits=8 memory=80e9", {"devices_by_size": 6, "devices_by_layout": 8}),
    (f"memory {P405} {L405} bits=4 memory=80e9", {"devices_by_size": 3, "devices_by_layout": 4}),
    (f"users {P7} {L7} bits=16 memory=80e9 --hardware a100", {"users_per_group": 30, "compute_ceiling": 153}),
    (f"users {P7} {L7} bits=4 memory=80e9 overhead=3e9", {"users_per_group": 34}),
    (
        f"kv {L13} --context 2048 used=50 block=16",
        {"reserved_bytes": 1.68 * GB, "paged_bytes": 52.4e6, "paging_gain": 32},
    ),
    ("roofline --hardware h100", {"ridge": 295}),
    ("roofline --hardware a100", {"ridge": 153}),
    ("roofline --hardware h200", {"ridge": 206}),
    ("roofline --hardware b200", {"ridge": 281}),
    (f"roofline {MATRIX}", {"read_s": 40.1e-6, "compute_s": 0.136e-6, "read_over_compute": 295, "bound": "memory"}),
    (f"roofline {MATRIX} --batch 256", {"compute_s": 34.7e-6}),
    (f"roofline {MATRIX} --batch 512", {"compute_s": 69.5e-6, "bound": "compute"}),
    (
        "hierarchy",
        {"shared_memory_s": 0.03e-3, "l2_s": 0.083e-3, "memory_s": 0.299e-3, "host_s": 15.6e-3, "nvme_s": 143e-3},
    ),
    ("attention --tokens 4096 heads=64", {"scores_bytes": 8.59 * GB}),
    ("attention", {"plain_bytes": 35.7e6, "tiled_bytes": 9.44e6}),
    *(
        (
            f"speculation acceptance={alpha} drafts={gamma} {SMALL_DRAFT}",
            {"tokens_per_round": tau, "gain": gain},
        )
        for alpha, gamma, tau, gain in (
            (0.5, 5, 1.97, 1.53),
            (0.6, 5, 2.38, 1.85),
            (0.7, 5, 2.94, 2.29),
            (0.8, 5, 3.69, 2.87),
            (0.9, 5, 4.69, 3.64),
            (0.8, 3, 2.95, 2.52),
            (0.8, 8, 4.33, 2.97),
        )
    ),
    ("metrics request=200:2200:50", {"tpot_mean_s": 0.0408, "tokens_per_s_each": 24.5}),
    ("metrics request=0:270:10 request=0:49950:1000", {"tpot_mean_s": 0.040, "itl_mean_s": 0.04982}),
    ("queue capacity=10 --rate 5", {"rho": 0.5, "time_s": 0.2, "inside": 1}),
    ("queue capacity=10 --rate 8", {"time_s": 0.5, "inside": 4}),
    ("queue capacity=10 --rate 9", {"time_s": 1, "inside": 9}),
    ("queue capacity=10 --rate 9.5", {"time_s": 2, "inside": 19}),
    (
        "prefix prefix=2000 own=80 token-ms=.5 requests=10000",
        {"cold_s": 1.040, "warm_s": 0.040, "prefix_tokens_before": 20e6, "prefix_tokens_after": 2000},
    ),
    (f"transfer {L70} --tokens 2048 link=900e9", {"transfer_s": 0.75e-3, "moved": 0.671 * GB}),
    (f"transfer {L70} --tokens 2048 link=50e9", {"transfer_s": 13.4e-3}),
    (f"transfer {L70} --tokens 2048 link=64e9", {"transfer_s": 10.5e-3}),
    ("cost hourly=8.424 tokens-per-s=300", {"dollars_per_million": 7.80, "tokens_per_day": 25.9e6}),
    ("cost hourly=8.424 tokens-per-s=1000", {"dollars_per_million": 2.34, "tokens_per_day": 86.4e6}),
    (f"cost {API}", {"api_dollars": 8500}),
    (f"cost {HOST} hours=720", {"break_even_requests": 1.252e6}),
    (f"cost {HOST} hours=730", {"break_even_requests": 1.266e6}),
    (f"cost {HOST} hours=720 --rate 50 utilization=.7", {"host_requests": 90.7e6, "host_each": 0.000117}),
    (
        "cost monthly=2000 engineer-hours=20 engineer-price=150 api-each=.01 requests=2e6",
        {"break_even_requests": 500e3, "api_over_host": 4},
    ),
    (
        f"users {P70} {L70} bits=16 memory=80e9 devices=8 --users 1000 --price 2.5",
        {"users_per_group": 372, "devices": 24, "dollars_per_day": 1440},
    ),
    (
        f"users {P70} {L70} bits=4 --kv int8 memory=80e9 devices=4 --users 1000 --price 2.5",
        {"users_per_group": 424, "devices": 12, "dollars_per_day": 720},
    ),
    (
        f"users {P13} {L13} bits=4 --kv int8 memory=80e9 overhead=3e9 --users 3000",
        {"users_per_group": 42, "devices": 72},
    ),
    (
        "batching --answers 7x50,1x500 step-ms=10 slots=8",
        {"static_tokens_per_s": 170, "continuous_tokens_per_s": 800},
    ),
    ("sampling --top-k 3", {"shares": [0.61, 0.22, 0.17]}),
    ("sampling --top-p .7", {"kept": 4}),
    ("sampling --temperature .5 tail=0", {"largest": 0.79}),
    ("shed queue=.9", {"chance": 0.5}),
    ("shed queue=.8", {"chance": 0}),
    ("shed queue=.1 kv-used=.9 kv-asked=.1", {"refused": 1}),
    ("coldstart provision-s=60 moved=140e9 link=7e9 engine-s=20", {"load_s": 20, "total_s": 100}),
]


def ask(capsys: pytest.CaptureFixture[str], words: str) -> dict:
    assert main(["calc", *words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def digits(expected: float) -> int:
    """Digits after which the expected figure, as quoted, says nothing."""
    return len(f"{expected:.6g}".split("e")[0].replace(".", "").replace("-", "").lstrip("0").rstrip("0")) or 1


def is_as_quoted(found: float, expected: float) -> bool:
    """Half a unit in the last digit quoted."""
    if expected == int(expected) and abs(expected) < 1000:
        return abs(found - expected) < 0.5 if found != int(found) else found == expected
    return float(f"{found:.{digits(expected)}g}") == pytest.approx(expected, rel=1e-9) or found == pytest.approx(
        expected, rel=2e-3
    )


@pytest.mark.parametrize(("words", "expected"), CASES, ids=[words[:70] for words, _ in CASES])
def test_a_worked_case(words: str, expected: dict, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, words)["textbook"]
    for key, value in expected.items():
        if isinstance(value, list):
            assert [round(one, 2) for one in found[key]] == value
        elif isinstance(value, bool | str):
            assert found[key] == value
        else:
            assert is_as_quoted(found[key], value), f"{key} is {found[key]}, not {value}"
