"""What begins before the imports disturbs nobody."""

import subprocess
import sys
from pathlib import Path

from penstock.early import begin, read_ahead


def test_a_machine_without_a_gpu_or_its_libraries_is_none_the_wiser() -> None:
    begin()


def test_a_file_read_ahead_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(b"code")
    read_ahead(path)
    assert path.read_bytes() == b"code"


def test_it_imports_nothing_that_takes_time() -> None:
    code = "import sys; import penstock.early; print(sorted({'torch', 'ctypes', 'numpy', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
