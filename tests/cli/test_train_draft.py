"""`penstock train-draft` refuses what cannot be trained before anything is loaded, and keeps answers for the next run."""

from pathlib import Path

import pytest
import torch

from penstock.cli.main import main
from penstock.cli.train_draft import read_prompts
from penstock.errors import ConfigError
from penstock.runtime.train.examples import Example, read_examples, write_examples


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train-draft", "oracle:", *words]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("one\n\ntwo\n")
    many = tmp_path / "many.txt"
    many.write_text("\n\n".join(f"question {number}" for number in range(12)))
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").touch()
    assert "--out names no folder" in refusal(capsys, "--text", str(many))
    assert "has 2 paragraphs" in refusal(capsys, "--text", str(text), "--out", str(tmp_path / "new"))
    assert "is not empty" in refusal(capsys, "--text", str(many), "--out", str(full))
    assert "cannot be made" in refusal(capsys, "--text", str(many), "--out", str(text / "below"))
    assert "cannot read" in refusal(capsys, "--text", str(tmp_path / "absent"), "--out", str(tmp_path / "new"))
    assert "--minutes is 0" in refusal(capsys, "--text", str(many), "--minutes", "0")


def test_paragraphs_are_prompts_each_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("What is it?\n\n\n  A longer\nquestion.  \n\n")
    two.write_text("What is it?\n\nAnother.")
    assert read_prompts([one, two]) == ["What is it?", "A longer\nquestion.", "Another."]


def test_answers_are_kept_for_their_own_model_only(tmp_path: Path) -> None:
    examples = [Example(torch.arange(length), torch.randn(length, 8).half(), length // 3) for length in (5, 9, 3)]
    path = tmp_path / "answers.safetensors"
    write_examples(path, examples, "mine")
    for kept, given in zip(read_examples(path, "mine", 8), examples, strict=True):
        assert torch.equal(kept.tokens, given.tokens)
        assert torch.equal(kept.states, given.states)
        assert kept.num_prompt == given.num_prompt
    with pytest.raises(ConfigError, match="answers of this model"):
        read_examples(path, "another", 8)
