"""Laws of what is shown while one waits and while a model speaks: terminals only, and nothing that steers them."""

import io
import sys

import pytest

from penstock.amounts import format_bytes, format_count
from penstock.console import progress
from penstock.console.progress import ProgressBar
from penstock.console.speech import dimmed, write_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("unit", ["bytes", "prompts"])
def test_a_terminal_sees_the_stage_and_how_far_it_is(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with ProgressBar(unit) as bar:
        bar("download", 10, None)
        bar("download", 512, 1024)
        bar("verify", 1024, 1024)
    assert "checking" in terminal.getvalue()


def test_what_is_over_soon_and_what_is_piped_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBar() as bar:
            bar("load", 1, 2)
            bar("load", 2, 2)
        assert stream.getvalue() == ""


def test_a_model_cannot_steer_a_terminal_and_a_pipe_gets_its_words_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        write_text("a\tb\x1b[2J\n", stream)
    assert terminal.getvalue() == "a\tb\ufffd[2J\n"
    assert pipe.getvalue() == "a\tb\x1b[2J\n"
    assert dimmed("a\x1b", terminal) == "\x1b[2ma\ufffd\x1b[0m"
    assert dimmed("a", pipe) == "a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert dimmed("a\x1b", terminal) == "a\ufffd"


def test_amounts_in_words() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 3 << 29)] == ["0 B", "1,023 B", "1.00 KiB", "1.50 GiB"]
    assert [format_count(count) for count in (0, 999_999, 134_515_008)] == ["0", "999,999", "134.5 M"]
