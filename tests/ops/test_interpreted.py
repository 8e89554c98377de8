"""Every CUDA kernel, on any machine: Triton's interpreter runs it on the CPU, and its compiler takes it for a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.parity import cases
from tests.ops.recorded import NAME

ROOT = Path(__file__).parents[2]
LIBRARY = {"cuda.fp8.multiply_scaled", "cuda.packed.multiply_whole"}
"""Call a library that only a GPU has."""
KERNELS = [kernel.name for _, device_type, kernel in cases() if device_type == "cuda"]


def _verdicts(*words: str, **environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["kernel"]: line["verdict"] for line in lines}


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    """On the example of each that shows most."""
    return _verdicts("tests.ops.interpreted", "1", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def interpreted_whole() -> dict[str, str]:
    return _verdicts("tests.ops.interpreted", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    return _verdicts("tests.ops.compiled")


@pytest.mark.parametrize("kernel", KERNELS)
def test_interpreted_kernel_equals_definition(interpreted: dict[str, str], kernel: str) -> None:
    if interpreted[kernel] == "fits nothing here":
        pytest.skip("calls a library that only a GPU has")
    assert interpreted[kernel] == "equal", interpreted[kernel]


@pytest.mark.slow
def test_interpreted_kernels_equal_their_definitions_on_all_examples(interpreted_whole: dict[str, str]) -> None:
    assert {name: verdict for name, verdict in interpreted_whole.items() if verdict != "equal"}.keys() <= LIBRARY


def test_attention_recorded_for_any_chunks_equals_definition(interpreted: dict[str, str]) -> None:
    assert interpreted[NAME] == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_compiles_for_a_gpu(compiled: dict[str, str], kernel: str) -> None:
    if compiled[kernel] == "fits nothing here":
        pytest.skip("calls a library that only a GPU has")
    assert compiled[kernel] == "compiled", compiled[kernel]


def test_kernels_are_found() -> None:
    assert "cuda.norm.rms_norm_rows" in KERNELS
