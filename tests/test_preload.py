"""What begins before the imports disturbs nobody."""

import subprocess
import sys
import threading

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
