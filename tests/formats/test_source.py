import os
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.runtime.formats.source import DEFAULT, HubSource, LocalSource, PackageSource, parse_source

from .files import lifelike_gguf


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("default", DEFAULT),
        ("hf:org/name", HubSource("org/name")),
        ("hf:Org/Name-1.5_b@refs/pr/1", HubSource("Org/Name-1.5_b", "refs/pr/1")),
        ("hf:org/name:model-Q4_K_M.gguf", HubSource("org/name", "main", "model-Q4_K_M.gguf")),
        ("hf:org/name@0123abc:Q4/model.gguf", HubSource("org/name", "0123abc", "Q4/model.gguf")),
        ("pypi:some-package", PackageSource("some-package")),
        ("pypi:Some_Package==1.0rc1", PackageSource("some-package", "1.0rc1")),
    ],
)
def test_each_form_is_understood(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize("text", ["hf:org/name@v1:a/b.gguf", "hf:org/name", "pypi:package==2", "pypi:package"])
def test_a_source_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_source(text)) == text


def test_paths_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(lifelike_gguf())
    assert parse_source(str(file)) == LocalSource(file)
    assert parse_source(str(tmp_path)) == LocalSource(file)  # the only model in the directory
    (tmp_path / "config.json").write_text("{}")
    assert parse_source(str(tmp_path)) == LocalSource(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert parse_source("model.gguf") == LocalSource(Path("model.gguf"))


def test_a_path_never_shadows_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default").mkdir()
    assert parse_source("default") == DEFAULT


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("defualt", "did you mean default"),
        ("https://huggingface.co/org/name/tree/main", "write hf:org/name"),
        ("huggingface.co/org/name", "write hf:org/name"),
        ("org/name", "write hf:org/name"),
        ("some-package", "write pypi:some-package"),
        ("hff:org/name", "did you mean hf:org/name"),
        ("huggingface:org/name", "did you mean hf:org/name"),
        ("pip:package", "did you mean pypi:package"),
        ("s3://bucket/model", "choose a .gguf file"),
        ("file:///etc/passwd", "choose a .gguf file"),
        ("absent.gguf", "choose a .gguf file"),
        ("absent/directory/model.gguf", "choose a .gguf file"),
        ("nul\0name", "choose a .gguf file"),
        ("", "choose a .gguf file"),
        ("x" * 65536, "choose a .gguf file"),
        ("hf:", "write hf:ORG/NAME"),
        ("hf:name", "write hf:ORG/NAME"),
        ("hf:org/../name", "write hf:ORG/NAME"),
        ("hf:../name", "write hf:ORG/NAME"),
        ("hf:org/name@../..", "write hf:ORG/NAME"),
        ("hf:org/name@-x", "write hf:ORG/NAME"),
        ("hf:org/name:../../model.gguf", "write hf:ORG/NAME"),
        ("hf:org/name:/etc/model.gguf", "hf:ORG/NAME:FILE.gguf"),
        ("hf:org/name:model.bin", "hf:ORG/NAME:FILE.gguf"),
        ("hf:org/na me", "write hf:ORG/NAME"),
        ("hf:org/name\n", "write hf:ORG/NAME"),
        ("pypi:", "write pypi:PACKAGE"),
        ("pypi:--index-url=http://evil", "write pypi:PACKAGE"),
        ("pypi:package --pre", "write pypi:PACKAGE"),
        ("pypi:package>=1", "write pypi:PACKAGE"),
        ("pypi:package==", "write pypi:PACKAGE"),
        ("pypi:package @ file:///tmp/x", "write pypi:PACKAGE"),
        ("pypi:../package", "write pypi:PACKAGE"),
        ("pypi:package[extra]", "write pypi:PACKAGE"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_nearest_form(
    text: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        parse_source(text)
    assert way_out in str(caught.value)
    assert len(str(caught.value)) < 800


def test_paths_that_are_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ConfigError, match="not a model by itself"):
        parse_source(str(tmp_path / "notes.txt"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        parse_source(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="name its directory"):
        parse_source(str(tmp_path / "notes.txt"))
    (tmp_path / "config.json").unlink()
    for name in ("one.gguf", "two.gguf"):
        (tmp_path / name).write_bytes(lifelike_gguf())
    with pytest.raises(ConfigError, match=r"holds 2 models; name one, such as .*one\.gguf"):
        parse_source(str(tmp_path))
    with pytest.raises(ConfigError, match=r"did you mean .*two\.gguf"):
        parse_source(str(tmp_path / "twoo.gguf"))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ConfigError, match="neither a file nor a directory"):
        parse_source(str(tmp_path / "pipe.gguf"))
