"""Commands take an adapter by its path, with or without a name, and their answers are those it gives."""

import io
import json
import sys
from pathlib import Path

import pytest

from penstock import LLM, SamplingParams
from penstock.cli.main import main
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model

GREEDY = ["--temperature", "0", "--max-tokens", "8", "--speculate", "off"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_adapter(tmp_path_factory.mktemp("adapter") / "one", 7))


@pytest.fixture(scope="module")
def answers(model: str, adapter: str) -> tuple[str, str]:
    """Of the adapter and of the base, to one question."""
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(model, adapters={"one": adapter}, max_context=256, speculate="off") as llm:
        first, second = llm.generate(["Water falls"] * 2, params, adapter=["one", ""])
    return first.text, second.text


def test_generate_takes_an_adapter(
    model: str, adapter: str, answers: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "Water falls", "--model", model, "--max-context", "256", *GREEDY, "--json"]
    assert main([*words, "--adapter", adapter]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == answers[0] != answers[1]
    assert main([*words, "--adapter", f"other={adapter}", "--beam-width", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == answers[0]
    assert main([*words, "--adapter", "/nowhere"]) in (0, 2)
    found = capsys.readouterr()
    assert "no adapter" in found.err + found.out


def test_chat_takes_an_adapter(
    model: str, adapter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for more in ([], ["--adapter", adapter]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert main(["chat", model, "--max-context", "256", "--temperature", "0", "--max-tokens", "8", *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]


def test_eval_measures_an_adapter(model: str, adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, asked = tmp_path / "text", tmp_path / "asked.jsonl"
    text.write_text("Water falls from the rock, and the river takes it to the sea. " * 3)
    found = []
    for more in ([], ["--adapter", adapter]):
        assert (
            main(["eval", "perplexity", str(text), model, "--max-context", "128", "--context", "64", "--json", *more])
            == 0
        )
        found.append(json.loads(capsys.readouterr().out)["perplexity"])
    assert found[0] != found[1]
    asked.write_text(json.dumps({"prompt": "Water", "answer": "falls"}) + "\n")
    assert main(["eval", "tasks", str(asked), model, "--max-context", "512", "--json", "--adapter", adapter]) == 0
    assert json.loads(capsys.readouterr().out)["adapter"] == adapter


def test_show_describes_an_adapter(adapter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", adapter]) == 0
    assert "rank" in capsys.readouterr().out
