"""Laws of command lines: every config has one that builds it, and every mistake names its way out."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import EngineConfig
from penstock.console.args import arguments_of, build, parse
from penstock.errors import ConfigError
from tests.cli.orchard import Config
from tests.cli.strategies import TEXT, configs


def read(*words: str, config: type = Config) -> Any:
    return build(config, parse(config, words).values)


@given(configs)
def test_the_command_line_of_a_config_builds_that_config(config: Any) -> None:
    assert read(*arguments_of(config), config=type(config)) == config


def test_a_config_of_defaults_needs_no_words() -> None:
    assert arguments_of(EngineConfig()) == []
    assert read(config=EngineConfig) == EngineConfig()


@given(st.lists(TEXT | st.sampled_from(["--apples", "3", "--no-label", "--label", "--kind=russet"]), max_size=6))
def test_any_words_at_all_give_a_config_or_a_config_error(words: list[str]) -> None:
    with suppress(ConfigError):
        arguments = parse(Config, words)
        if not arguments.wants_help:
            assert isinstance(build(Config, arguments.values), Config)


def test_words_mean_what_they_say() -> None:
    config = read("Ann", "--apples", "3", "north", "--no-pruned", "--label=a", "--label", "b", "--", "--south")
    assert (config.picker, config.baskets) == ("Ann", ("north", "--south"))
    assert (config.apples, config.label, config.weights) == (3, ("a", "b"), (1.5, 2.0))
    assert not config.garden.tree.pruned
    assert config.garden.tree.height_m == 3.0


def test_the_last_of_repeated_flags_wins_and_given_lists_replace_the_default() -> None:
    config = read("Ann", "--apples=1", "--apples=2", "--weights", "7", "--no-label", "--years=5", "--no-years")
    assert (config.apples, config.weights, config.garden.years) == (2, (7.0,), None)
    assert read("Ann", "--no-weights").weights == ()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["A", "--aples", "3"], "unknown flag --aples; did you mean --apples?"),
        (["A", "--height_m=3"], "unknown flag --height_m; did you mean --height-m?"),
        (["A", "--no-prund"], "unknown flag --no-prund; did you mean --no-pruned?"),
        (["A", "--help=json"], "--help takes no value"),
        (["A", "--hlep"], "unknown flag --hlep; did you mean --help?"),
        (["A", "--k"], "unknown flag --k; see --help"),
        (["A", "--xyzzy=1"], "unknown flag --xyzzy; see --help"),
        (["A", "-q"], "unknown flag -q; see --help"),
        (["A", "--no-apples"], "unknown flag --no-apples; did you mean --apples?"),
        (["--picker", "B"], "unknown flag --picker; write PICKER alone, without --picker before it"),
        (["A", "--apples"], "--apples needs a value after it"),
        (["A", "--note", "--json"], "--note needs a value before --json; if that is the value, write --note=--json"),
        (["A", "--json=yes"], "--json takes no value; write it alone, or --no-json instead"),
        (["A", "--no-years=3"], "--no-years takes no value; write it alone, or --years instead"),
        ([], "missing PICKER; see --help"),
        (["A", "--apples=-1"], "--apples is -1; choose 0 or more"),
    ],
)
def test_a_mistake_names_the_way_out(words: list[str], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*words)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--max-contxt", "9"], "unknown flag --max-contxt; did you mean --max-context?"),
        (["--dtype", "bf16"], "--dtype takes auto, float32, bfloat16 or float16, not 'bf16'; did you mean bfloat16?"),
        (["MODEL", "block-size", "16"], "unexpected 'block-size'; did you mean --block-size?"),
        (["MODEL", "surplus"], "unexpected 'surplus'; see --help"),
        (["--block-size", "17"], "--block-size is 17; choose 8, 16, 32, 64 or 128"),
    ],
)
def test_a_mistake_about_the_engine_names_the_way_out(words: list[str], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*words, config=EngineConfig)
    assert str(caught.value) == fault


def test_help_files_and_printing_are_told_apart_from_values() -> None:
    assert parse(Config, ["--help", "--nonsense"]).wants_help
    arguments = parse(Config, ["--config", "a.toml", "--print-config", "--config=b.json"])
    assert (arguments.values, arguments.files, arguments.wants_config) == ({}, ("a.toml", "b.json"), True)
