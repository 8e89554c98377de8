"""Laws of config files: what is printed reads back, and a wrong key or value is named with its file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from penstock.config import EngineConfig
from penstock.console.args import build
from penstock.console.config_file import read, write
from penstock.errors import ConfigError
from tests.cli.orchard import Config
from tests.cli.strategies import configs, engines

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, text: str, name: str = "penstock.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@same_folder
@given(config=configs)
def test_a_printed_config_reads_back_as_itself(tmp_path: Path, config: Any) -> None:
    assert build(type(config), read(type(config), written(tmp_path, write(config)))) == config


@same_folder
@given(config=engines)
def test_a_config_as_json_reads_back_as_itself(tmp_path: Path, config: EngineConfig) -> None:
    path = written(tmp_path, json.dumps(asdict(config)), "penstock.json")
    assert build(EngineConfig, read(EngineConfig, path)) == config


@pytest.mark.parametrize(
    "text",
    [
        "height-m = 2\n",
        "height_m = 2.0\n",
        "[tree]\nheight-m = 2\n",
        "[garden]\nheight-m = 2\n",
        "[garden.tree]\nheight-m = 2\n",
        "garden = {tree = {height_m = 2}}\n",
        "\ufeffheight-m = 2\r\n",
    ],
)
def test_a_leaf_may_stand_under_any_of_its_tables(tmp_path: Path, text: str) -> None:
    assert read(Config, written(tmp_path, text)) == {"height_m": 2.0}


def test_a_table_and_a_leaf_may_share_a_name(tmp_path: Path) -> None:
    assert read(EngineConfig, written(tmp_path, '[model]\nmodel = "a"\n')) == {"model": "a"}
    assert read(EngineConfig, written(tmp_path, 'model = "a"\n')) == {"model": "a"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("aples = 3", "unknown key aples; did you mean apples?"),
        ("[gardn]\nyears = 3", "unknown key gardn; did you mean garden?"),
        ("[tree]\napples = 3", "unknown key apples in [tree]"),
        ("[tree]\nhieght_m = 3", "unknown key hieght_m in [tree]; did you mean height-m?"),
        ("config = 'x'", "unknown key config"),
        ("apples = 'three'", "apples takes a whole number, not 'three'"),
        ("apples = '3'", "apples takes a whole number, not '3'"),
        ("apples = true", "apples takes a whole number, not True"),
        ("apples = 3.0", "apples takes a whole number, not 3.0"),
        ("apples = [3]", "apples takes a whole number, not [3]"),
        ("[apples]\nx = 3", "apples takes a whole number, not {'x': 3}"),
        ("height-m = nan", "height-m takes a finite number, not nan"),
        ("height-m = inf", "height-m takes a finite number"),
        ("height-m = true", "height-m takes a finite number"),
        (f"height-m = 1{'0' * 400}", "height-m takes a finite number"),
        ("json = 1", "json takes true or false, not 1"),
        ("kind = 'ruset'", "kind takes pippin, russet or codlin, not 'ruset'; did you mean russet?"),
        ("graft = true", "graft takes 1, 2 or 3"),
        ("weights = 3", "weights takes a list, each item a finite number, not 3"),
        ("weights = [1, 'a']", "weights takes a finite number, not 'a'"),
        ("book = 3", "book takes a path, not 3"),
        ("height-m = 1\nheight_m = 2", "height_m is given twice"),
        ("height-m = 1\n[tree]\nheight-m = 2", "height-m is given twice"),
        ("apples = ", "is not TOML: Invalid value (at"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read(Config, path)
    assert str(caught.value).startswith(path)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1]", "holds no settings"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"apples": 1, "apples": 2}', "a key is repeated"),
        ('{"apples": null}', "apples takes a whole number, not None"),
        ('{"height-m": NaN}', "height-m takes a finite number"),
    ],
)
def test_wrong_json_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(Config, written(tmp_path, text, "penstock.json"))


def test_json_null_is_no_value(tmp_path: Path) -> None:
    assert read(Config, written(tmp_path, '{"years": null, "month": "august"}', "a.json")) == {
        "years": None,
        "month": "august",
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"note = 'caf\xe9'")
    for path, fault in [("none.toml", "No such file"), ("latin.toml", "not UTF-8"), ("", "directory")]:
        with pytest.raises(ConfigError, match=fault):
            read(Config, str(tmp_path / path))
