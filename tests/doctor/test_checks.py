"""Every check passes a good machine, and tells a bad one with a remedy."""

import re
from dataclasses import replace
from typing import Any

import pytest

from penstock.tools.doctor.checks import CHECKS, GIB, examine, version_of
from penstock.tools.doctor.environment import Environment, Torch
from penstock.tools.doctor.finding import Verdict
from tests.doctor.test_rules import FLAGS

GOOD = Environment(
    python=(3, 12, 3),
    torch_version="2.13.0+cu130",
    torch_cuda="13.0",
    torch=Torch(device="NVIDIA H200", is_cuda=True, free_bytes=100 * GIB, num_threads=8, kernels="amx"),
    has_native_file=True,
    instructions=frozenset({"avx2", "avx512f", "avx512_vnni", "amx_int8"}),
    num_cores=16,
    quota_cores=None,
    throttled_fraction=None,
    load=0.5,
    clock_read_s=5e-8,
    clock_drift_s=0.0,
    available_bytes=32 * GIB,
    swap_used_bytes=0,
    num_gpus=1,
    driver_cuda="13.0",
    store="/models",
    store_fault="",
    store_free_bytes=50 * GIB,
    has_default_model=False,
    temporary="/tmp",
    temporary_fault="",
    max_files=20_000,
    max_connections=1280,
    port=8000,
    port_fault="",
)
CPU = Torch(device="CPU", num_threads=8, kernels="avx512")
OK, WARNING, FAULT = Verdict

CASES: list[tuple[str, dict[str, Any], Verdict]] = [
    ("cores", {"quota_cores": 8.0}, OK),
    ("cores", {"quota_cores": 7.0}, WARNING),
    ("cores", {"num_cores": 18}, WARNING),
    ("throttling", {"throttled_fraction": 0.05}, OK),
    ("throttling", {"throttled_fraction": 0.06}, WARNING),
    ("load", {"load": 12.0}, OK),
    ("load", {"load": 12.1}, WARNING),
    ("memory", {"available_bytes": 2 * GIB}, OK),
    ("memory", {"available_bytes": 2 * GIB - 1}, WARNING),
    ("memory", {"available_bytes": GIB - 1}, FAULT),
    ("swap", {"swap_used_bytes": GIB // 4}, OK),
    ("swap", {"swap_used_bytes": GIB // 4 + 1}, WARNING),
    ("clock", {"clock_read_s": 2.1e-6}, WARNING),
    ("clock", {"clock_drift_s": 0.11}, WARNING),
    ("cuda", {"torch": CPU, "num_gpus": 0, "driver_cuda": "", "torch_cuda": ""}, OK),
    ("cuda", {"torch": CPU, "torch_cuda": ""}, WARNING),
    ("cuda", {"torch": CPU, "driver_cuda": "12.8"}, FAULT),
    ("cuda", {"torch": CPU}, FAULT),
    ("python", {"python": (3, 11, 0)}, OK),
    ("python", {"python": (3, 10, 14)}, FAULT),
    ("torch", {"torch_version": "2.11.0"}, OK),
    ("torch", {"torch_version": "2.9.1"}, FAULT),
    ("torch", {"torch_version": ""}, FAULT),
    ("torch", {"torch": Torch(fault="is ended by SIGILL as it starts")}, FAULT),
    ("native", {"torch": replace(CPU, kernels="")}, WARNING),
    ("native", {"torch": replace(CPU, kernels=""), "has_native_file": False}, WARNING),
    ("native", {"torch": replace(CPU, kernels="portable")}, WARNING),
    ("native", {"torch": replace(CPU, kernels="portable"), "instructions": frozenset()}, OK),
    ("native", {"torch": Torch(fault="no module")}, WARNING),
    ("store", {"store_fault": "Permission denied"}, FAULT),
    ("store", {"store_free_bytes": GIB // 4 - 1}, FAULT),
    ("store", {"store_free_bytes": 0, "has_default_model": True}, OK),
    ("files", {"max_files": 1480}, OK),
    ("files", {"max_files": 1479}, WARNING),
    ("port", {"port_fault": "Address already in use"}, WARNING),
    ("temporary", {"temporary_fault": "Permission denied"}, FAULT),
]


def test_a_good_machine_passes_every_check_without_a_remedy() -> None:
    findings = examine(GOOD)
    assert [finding.id for finding in findings] == [check.id for check in CHECKS]
    assert {(finding.verdict, finding.remedy) for finding in findings} == {(OK, "")}


@pytest.mark.parametrize(("name", "found", "verdict"), CASES)
def test_a_check_judges_by_what_was_found(name: str, found: dict[str, Any], verdict: Verdict) -> None:
    finding = next(one for one in examine(replace(GOOD, **found)) if one.id == name)
    assert finding.verdict is verdict
    assert bool(finding.remedy) == (verdict is not OK)
    assert finding.evidence
    assert (
        set(re.findall(r"(?<=[ (])--[a-z][a-z-]*", finding.remedy)) - {"--no-deps", "--force-reinstall", "--sort"}
        <= FLAGS
    )


def test_every_check_can_fail() -> None:
    assert {name for name, _, verdict in CASES if verdict is not OK} == {check.id for check in CHECKS}


def test_a_machine_without_torch_is_told_so_and_nothing_breaks() -> None:
    bare = replace(
        GOOD, torch_version="", torch_cuda="", torch=Torch(fault="ModuleNotFoundError: No module named 'torch'")
    )
    assert {one.id for one in examine(bare) if one.verdict is FAULT} == {"torch"}


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.13.0+cpu", (2, 13, 0)), ("12.8", (12, 8)), ("2.14.0a0+git", (2, 14, 0)), ("nightly", ())]
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_of(text) == numbers
