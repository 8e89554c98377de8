"""Laws of output: machines get plain and whole values, terminals get nothing that steers them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.console.show import print_json, print_table, printable
from penstock.runtime.models import catalog


def test_json_reads_back_and_holds_no_number_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, 2.5, None, "é"]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, 2.5, None, "é"]}
    with pytest.raises(ValueError):
        print_json({"a": float("nan")})


def test_a_pipe_gets_every_cell_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "bytes"), [("[bold]x" * 60, 1234567), ("short", None)], title="Files")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Files"
    assert lines[1].split() == ["name", "bytes"]
    assert lines[2].split() == ["[bold]x" * 60, "1,234,567"]
    assert lines[3].split() == ["short"]


def test_a_table_without_headings_has_no_line_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", ""), [("a", 1), ("b", 2)])
    assert capsys.readouterr().out.splitlines() == ["a  1", "b  2"]


def test_names_from_outside_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[2J\rb\nc") == "a\ufffd[2J\ufffdb\nc"
    print_table(("name",), [("\x1b]0;owned\x07",)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_terminal_gets_headings_in_style() -> None:
    code = "from penstock.console.show import print_table; print_table(('name',), [('x',)])"
    terminal, process_side = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=Path(__file__).parents[2], stdout=process_side, env=environment, check=True)
    assert b"\x1b[1mname" in os.read(terminal, 4096)
    os.close(terminal)
    os.close(process_side)


def test_a_lone_config_is_a_model_that_can_be_shown(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(catalog.CONFIGS["llama-3-8b"]))
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["total"] == 8_030_261_248
