"""Laws of the `penstock` command: what it prints, how it ends, and how little it imports to say hello."""

import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS, Command, main
from penstock.console.args import flags_of

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "rich", "jinja2", "tokenizers", "safetensors", "huggingface_hub", "transformers", "asyncio")
ORCHARD = {
    "orchard": Command("tests.cli.orchard", "Count apples"),
    "absent": Command("tests.cli.absent", "Is not there"),
}
RUN_ORCHARD = (
    "import sys; from penstock.cli.main import Command, main; "
    "sys.exit(main(sys.argv[1:], {'orchard': Command('tests.cli.orchard', 'Count apples')}))"
)


def run_orchard(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN_ORCHARD, "orchard", *words]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def imported_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in process.stderr.split()}


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_the_first_hello_imports_nothing_heavy(word: str) -> None:
    assert not imported_by(f"from penstock.cli.main import main; main(['{word}'])") & set(HEAVY)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    assert not imported_by(f"from penstock.cli.main import main; main([*{name.split()}, '--help'])") & set(HEAVY)


def test_the_first_hello_takes_less_than_three_tenths_of_a_second() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "penstock", "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_table_is_a_command(name: str) -> None:
    module = import_module(COMMANDS[name].module)
    assert flags_of(module.Config)
    assert callable(module.run)


def test_python_dash_m_is_the_command() -> None:
    command = [sys.executable, "-m", "penstock", "--version"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.startswith("penstock ")


def test_no_words_and_help_print_the_commands_and_import_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], ORCHARD) == 0
    alone = capsys.readouterr().out
    assert main(["--help"], ORCHARD) == 0
    assert capsys.readouterr().out == alone
    assert "\n  orchard           Count apples\n  absent            Is not there\n" in alone


def test_a_command_runs_with_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["orchard", "Ann", "--apples", "3", "--json"], ORCHARD) == 0
    assert capsys.readouterr().out == '{\n  "picker": "Ann",\n  "apples": 3\n}\n'


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["orchrd"], "unknown command orchrd; did you mean orchard?"),
        (["xyzzy"], "unknown command xyzzy; see penstock --help"),
        (["--verson"], "unknown flag --verson; did you mean --version?"),
        (["--apples"], "unknown flag --apples; flags follow a command: penstock COMMAND --apples"),
        (["orchard", "Ann", "--aples", "3"], "unknown flag --aples; did you mean --apples?"),
        (["orchard", "Ann", "--apples", "-3"], "--apples is -3; choose 0 or more"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], words: list[str], fault: str) -> None:
    assert main(words, ORCHARD) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"penstock: error: {fault}\n")


@pytest.mark.parametrize(
    ("error", "status"), [("ConfigError", 2), ("RequestError", 2), ("EngineError", 1), ("CapacityError", 1)]
)
def test_whose_fault_it_is_decides_the_status(capsys: pytest.CaptureFixture[str], error: str, status: int) -> None:
    assert main(["orchard", "Ann", "--fail", error], ORCHARD) == status
    assert capsys.readouterr().err == "penstock: error: the ladder broke\n"


def test_an_error_message_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["\x1b[2Jorchard"], ORCHARD) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("error", ["NoSuchError", "BrokenPipeError"])
def test_an_unforeseen_error_keeps_its_traceback(error: str) -> None:
    process = run_orchard("Ann", "--fail", error)
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback")


def test_an_interrupt_ends_with_130_and_one_line() -> None:
    process = run_orchard("Ann", "--fail", "SIGINT")
    assert (process.returncode, process.stderr) == (130, "penstock: interrupted\n")


@pytest.mark.parametrize("words", [["Ann"], ["Ann", "--print-config", "--note", "long" * 25_000], ["--help"]])
def test_a_reader_that_leaves_early_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = run_orchard(*words, stdout=writing)
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, "")


def test_flags_win_over_files_and_later_files_over_earlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text('picker = "Ann"\napples = 1\nyears = 7\n')
    (tmp_path / "b.json").write_text('{"apples": 2}')
    files = ["--config", str(tmp_path / "a.toml"), "--config", str(tmp_path / "b.json")]
    assert main(["orchard", *files], ORCHARD) == 0
    assert '"apples": 2' in capsys.readouterr().out
    assert main(["orchard", *files, "--apples", "3", "Bob", "--no-years", "--print-config"], ORCHARD) == 0
    printed = capsys.readouterr().out
    assert 'picker = "Bob"\n' in printed
    assert "\napples = 3\n" in printed
    assert "\n# years =" in printed


def test_what_is_printed_can_be_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["orchard", "Ann", "--apples", "5", "--kind", "codlin", "--print-config"], ORCHARD) == 0
    printed = capsys.readouterr().out
    (tmp_path / "saved.toml").write_text(printed)
    assert main(["orchard", "--config", str(tmp_path / "saved.toml"), "--print-config"], ORCHARD) == 0
    assert capsys.readouterr().out == printed


def test_the_longer_name_wins_and_the_shorter_keeps_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {"orchard": ORCHARD["absent"], "orchard visit": ORCHARD["orchard"], "press juice": ORCHARD["orchard"]}
    for words in (["orchard", "visit"], ["press", "juice"]):
        assert main([*words, "Ann", "--apples", "3", "--json"], commands) == 0
        assert '"apples": 3' in capsys.readouterr().out
        assert main([*words, "--help"], commands) == 0
        assert capsys.readouterr().out.startswith(f"usage: penstock {' '.join(words)} [flags]")
    assert main(["orchard", "visitor", "--json"], {**ORCHARD, "orchard visit": ORCHARD["absent"]}) == 0
    assert '"picker": "visitor"' in capsys.readouterr().out
    assert main(["press", "apples"], {"press juice": ORCHARD["orchard"], "press cider": ORCHARD["absent"]}) == 2
    assert capsys.readouterr().err == "penstock: error: penstock press needs a second word: juice or cider\n"
    assert main(["press"], commands) == 2
