"""What begins before the imports disturbs nobody."""

import subprocess
import sys

from penstock.preload import begin


def test_a_machine_without_a_gpu_is_none_the_wiser() -> None:
    begin()


def test_it_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys; import penstock.preload; print(sorted({'torch', 'ctypes', 'numpy', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
