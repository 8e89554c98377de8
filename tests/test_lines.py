"""Writers that never fail whoever writes: full disks, closed pipes, bounds on a file; what is lost is counted and told."""

import contextlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.lines import LineFile
from penstock.log import MAX_PIPE_BYTES, PlainFormatter, SafeHandler

BOUNDED = """
import resource, signal, sys
from pathlib import Path
from penstock.lines import LineFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = LineFile(Path(sys.argv[1]), "--record")
for number in range(100):
    file.write(b"%030d" % number)
print(file.num_lost)
"""


def test_a_file_that_is_full_has_whole_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    done = subprocess.run([sys.executable, "-c", BOUNDED, str(path)], capture_output=True, text=True, check=True)
    lines = path.read_text().splitlines()
    assert lines == [f"{number:030}" for number in range(len(lines))]
    assert len(lines) + int(done.stdout) == 100
    assert done.stderr.count("cannot be written") == 1


def test_lines_to_a_full_disk_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    file = LineFile(Path("/dev/full"), "--record")
    for _ in range(3):
        file.write(b"line")
    assert file.num_lost == 3
    assert [record.getMessage() for record in caplog.records] == [
        "--record cannot be written: No space left on device; lines are lost and counted"
    ]


def test_a_reader_that_comes_back_is_written_to_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = LineFile(path, "route-log")
    file.write(b"one")
    os.close(reader)
    file.write(b"two")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file.write(b"three")
    assert os.read(reader, 100).endswith(b"three\n")
    assert file.num_lost == 1
    assert "1 lines were lost" in caplog.text
    os.close(reader)
    file.close()


def test_a_file_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--record .* cannot be written"):
        LineFile(tmp_path / "nowhere" / "lines", "--record")


def logger_to(stream: io.TextIOBase) -> tuple[logging.Logger, SafeHandler]:
    handler = SafeHandler(stream)  # type: ignore[arg-type]
    handler.setFormatter(PlainFormatter("penstock"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, handler


def test_a_pipe_that_nobody_empties_holds_up_nobody() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as lines, open(writer, "w") as stream:
        logger, handler = logger_to(stream)
        for number in range(20_000):
            logger.warning("line %d", number)
        logger.warning("x" * 10_000)
        assert 0 < handler.num_lost < 20_000
        found = os.read(lines.fileno(), 1 << 20).splitlines()
        assert found[0] == b"penstock: warning: line 0"
        logger.warning("x" * 10_000)
        (long,) = os.read(lines.fileno(), 1 << 20).splitlines()
        assert len(long) < MAX_PIPE_BYTES
        assert long.endswith(b" ...")


def test_a_closed_pipe_and_a_full_disk_raise_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for file in (writer, os.open("/dev/full", os.O_WRONLY)):
        stream = open(file, "w")  # noqa: SIM115 (closing it tries to write once more)
        logger, handler = logger_to(stream)
        logger.warning("lost")
        assert handler.num_lost == 1
        with contextlib.suppress(OSError):
            stream.close()
