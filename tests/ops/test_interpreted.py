"""Every CUDA kernel equals its operation's definition, on any machine: Triton's interpreter runs it on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.parity import cases

pytest.importorskip("triton", reason="triton is not installed here")

ROOT = Path(__file__).parents[2]
KERNELS = [kernel.name for _, device_type, kernel in cases() if device_type == "cuda"]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["kernel"]: line["verdict"] for line in lines}


@pytest.mark.parametrize("kernel", KERNELS)
def test_interpreted_kernel_equals_definition(verdicts: dict[str, str], kernel: str) -> None:
    if verdicts[kernel] == "fits nothing here":
        pytest.skip("calls a library that only a GPU has")
    assert verdicts[kernel] == "equal", verdicts[kernel]


def test_kernels_are_found() -> None:
    assert "cuda.norm.rms_norm_rows" in KERNELS
