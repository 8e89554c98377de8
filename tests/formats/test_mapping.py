import os
from pathlib import Path

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.mapping import let_go, map_file


def test_the_bytes_are_the_files_and_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    data = map_file(path)
    assert data.tobytes() == b"some bytes"
    assert not data.flags.writeable
    assert data.base is not None  # a view, not a copy


def test_a_mapping_outlives_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    data = map_file(path)
    path.unlink()
    assert data.tobytes() == b"some bytes"


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ModelFileError, match="not a regular file"):
            map_file(path)


@pytest.mark.parametrize("name", ["absent", "nul\0name", "long" * 30_000])
def test_what_cannot_be_opened_is_refused_briefly(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        map_file(tmp_path / name)
    assert len(str(caught.value)) < 1000


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(ModelFileError, match="empty"):
        map_file(path)


def test_what_was_let_go_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 64)
    data = map_file(path)
    before = bytes(data)
    let_go(data[100:200].reshape(10, 10))
    assert bytes(data) == before


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel does not tell which pages are resident")
def test_what_was_let_go_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(1 << 20))
    data = map_file(path)
    assert not data.any()
    assert _resident_kib(path) >= 1024
    let_go(data[100:200].reshape(10, 10))
    assert _resident_kib(path) == 0


def _resident_kib(path: Path) -> int:
    _, _, entry = Path("/proc/self/smaps").read_text().partition(str(path))
    return int(entry.partition("Rss:")[2].split()[0])
