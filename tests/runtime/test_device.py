"""What a CPU says of itself."""

from pathlib import Path

import torch

from penstock.runtime.execution.device import CpuDevice, _group_bytes, open_device, rest_torch, usual_threads


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


def test_a_second_model_of_a_process_has_as_many_threads_as_the_first() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        usual_threads.cache_clear()
        first = open_device("cpu")
        rest_torch()
        assert torch.get_num_threads() == 1
        assert open_device("cpu") == first == CpuDevice(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        usual_threads.cache_clear()
