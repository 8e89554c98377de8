"""What begins before the imports disturbs nobody."""

import os
import subprocess
import sys
import threading

import pytest

from penstock.runtime.preload import begin


def test_a_machine_without_a_gpu_is_none_the_wiser() -> None:
    threads = threading.active_count()
    begin()
    assert threading.active_count() <= threads + 1, "at most one thread looks for a driver"
    assert "torch.cuda" not in sys.modules or not sys.modules["torch.cuda"].is_initialized()


def test_it_imports_nothing_that_takes_time() -> None:
    heavy = {"torch", "ctypes", "numpy", "triton"}
    code = f"import sys; import penstock.runtime.preload; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SUMS = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))
from penstock.assembly.worker import share_processors
share_processors()
import time, torch
torch.set_num_threads(2)
rows = torch.randn(512, 512)
rows + rows
wall_s, processor_s = time.monotonic(), time.process_time()
for _ in range(200):
    rows + rows
    time.sleep(0.001)
print((time.process_time() - processor_s) / (time.monotonic() - wall_s))
"""
"""Prints how much of the time between sums a thread burns that waits for the next."""


@pytest.mark.skipif(sys.platform != "linux" or (os.cpu_count() or 1) < 2, reason="one thread sums alone here")
def test_threads_that_wait_for_a_sum_leave_their_processor_to_others() -> None:
    """Unless whoever starts us says otherwise."""
    assert burnt() < burnt(OMP_WAIT_POLICY="active") / 2


def burnt(**said: str) -> float:
    silent = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", SUMS], capture_output=True, text=True, check=True, env=silent | said)
    return float(done.stdout)
