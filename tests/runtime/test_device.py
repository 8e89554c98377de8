"""What a CPU says of itself."""

from pathlib import Path

import torch

from penstock.runtime.device import CpuDevice, _group_bytes, open_device


def test_memory_is_what_the_machine_and_its_container_leave(tmp_path: Path) -> None:
    assert 0 < open_device("cpu").free_bytes < 2**50
    assert _group_bytes(tmp_path) == 2**62
    (tmp_path / "memory.max").write_text("max\n")
    assert _group_bytes(tmp_path) == 2**62
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert _group_bytes(tmp_path) == 600


def test_number_types() -> None:
    device = CpuDevice(2)
    assert device.dtype("auto") == torch.float32
    assert device.dtype("bfloat16") == torch.bfloat16
    assert "2 threads" in device.name
