"""Laws of files that commands write: whole or not at all, and refused before the work that would fill them."""

import os

import pytest

from penstock.cli.main import main
from penstock.console.files import check_writable, write_file
from penstock.errors import ConfigError


def test_a_file_is_written_whole_and_its_folders_are_made(tmp_path):
    path = tmp_path / "some" / "folder" / "report.json"
    check_writable(path, None)
    assert not path.exists(), "checking writes nothing"
    write_file(path, "één")
    write_file(path, "two")
    assert path.read_text(encoding="utf-8") == "two"
    assert os.listdir(path.parent) == ["report.json"]


def test_what_is_no_file_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_place_that_takes_no_file_is_named_with_a_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below"):
        for refuse in (check_writable, lambda path: write_file(path, "text")):
            with pytest.raises(ConfigError, match=r"^cannot write .*; name another file$"):
                refuse(path)


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "http://127.0.0.1:1", "--html"],
        ["bench", "http://127.0.0.1:1", "--json"],
        ["profile", "/no/such/model", "--out"],
        ["plan", "no-such-model", "--emit"],
        ["simulate", "--model", "no-such-model", "--chrome-trace"],
    ],
)
def test_a_command_refuses_before_it_works(words, tmp_path, capsys):
    """No server, no model, no simulation is asked before."""
    assert main([*words, str(tmp_path)]) == 2
    assert "it is a directory" in capsys.readouterr().err
