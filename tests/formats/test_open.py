from pathlib import Path

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.open import open_checkpoint

from .files import lifelike_gguf, lifelike_safetensors


def test_each_format_is_opened_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.GGUF").write_bytes(lifelike_gguf())
    (tmp_path / "model.safetensors").write_bytes(lifelike_safetensors())
    assert "token_embd.weight" in open_checkpoint(tmp_path / "model.GGUF").names
    for path in (tmp_path / "model.safetensors", tmp_path):
        assert "model.embed_tokens.weight" in open_checkpoint(path).names


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        open_checkpoint(tmp_path / "absent.gguf")
