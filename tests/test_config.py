"""What the operator asks is checked when it is made, and a mistake is answered with the way out."""

import math
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from penstock.cli.loading import adapter_at
from penstock.config import AdapterConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, configure
from penstock.errors import ConfigError

NOT_POSITIVE = [0, -1, -(2**70), True, "1", 1.5, math.nan, [], math.inf]


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize(
    "name", ["max_context", "num_blocks", "max_batch_tokens", "max_sequences", "max_waiting", "max_waiting_tokens"]
)
def test_counts_are_whole_and_positive(name, value):
    flag = name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"^(--)?{flag} is .*; choose a whole number, 1 or more"):
        configure(**{name: value})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("memory_fraction", [0.01, 1, 1.0], [0, 0.0, -0.1, 1.01, math.nan, math.inf, "0.5", True, None]),
        ("gather_s", [0, 0.0, 60], [-0.1, 60.1, math.nan, math.inf, -math.inf, "1", True, None]),
    ],
)
def test_shares_and_seconds_are_in_range(name, good, bad):
    for value in good:
        configure(**{name: value})
    for value in bad:
        with pytest.raises(ConfigError, match=f"{name.replace('_', '-')} is "):
            configure(**{name: value})


@pytest.mark.parametrize("block_size", [0, 1, 4, 12, 256, -16, "16"])
def test_block_sizes_are_those_that_kernels_take(block_size):
    with pytest.raises(ConfigError, match=f"--block-size is {block_size}; choose 8, 16, 32, 64 or 128"):
        CacheConfig(block_size=block_size)


@pytest.mark.parametrize("name", ["batching", "order", "dtype", "device", "weights", "kv"])
def test_names_are_those_we_know(name):
    with pytest.raises(ConfigError, match=rf"{name} is surprise; choose one of \w+"):
        configure(**{name: "surprise"})


def test_a_number_format_is_not_asked_of_weights_that_keep_their_own():
    ModelConfig(weights="packed")
    with pytest.raises(ConfigError, match=r"--weights packed .*--dtype bfloat16.*leave one out"):
        ModelConfig(weights="packed", dtype="bfloat16")


def test_a_step_has_a_token_for_everyone():
    SchedulerConfig(max_batch_tokens=8, max_sequences=8)
    with pytest.raises(
        ConfigError, match=r"--max-batch-tokens is 7 but --max-sequences is 8.*raise the former or lower the latter"
    ):
        SchedulerConfig(max_batch_tokens=7, max_sequences=8)


def test_what_is_asked_together_is_checked_together():
    """Whichever is named first, and though neither would do alone."""
    for settings in (
        {"max_sequences": 4096, "max_batch_tokens": 8192},
        {"max_batch_tokens": 8, "max_sequences": 8},
    ):
        assert configure(**settings) == configure(**dict(reversed(settings.items())))


def test_settings_go_to_their_groups():
    config = configure(max_context=4096, order="fair", num_blocks=7, max_waiting=3)
    assert config.model.max_context == 4096
    assert config.scheduler.order == "fair"
    assert config.scheduler.max_waiting == 3
    assert config.cache.num_blocks == 7
    assert configure(config, block_size=32).cache == CacheConfig(block_size=32, num_blocks=7)
    assert configure() == EngineConfig()


def test_an_unknown_setting_names_its_neighbour():
    with pytest.raises(ConfigError, match="unknown setting max_contxt; did you mean max_context"):
        configure(max_contxt=1)
    with pytest.raises(ConfigError, match=r"^unknown setting zzz$"):
        configure(zzz=1)


def test_configs_are_never_written():
    config = EngineConfig()
    with pytest.raises(FrozenInstanceError):
        config.model.max_context = 5
    with pytest.raises(FrozenInstanceError):
        config.model = ModelConfig()


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("helper=./out", "helper", "out"),
        ("./out", "out", "out"),
        ("out/", "out", "out"),
        ("folder/helper.gguf", "helper", "folder/helper.gguf"),
        ("v1.5=folder/helper.gguf", "v1.5", "folder/helper.gguf"),
        ("./rank=8/out", "out", "rank=8/out"),
        ("a=b=c", "a", "b=c"),
        ("org/helper=out", "org/helper", "out"),
    ],
)
def test_an_adapter_is_named_or_has_the_name_of_its_folder(text, name, path):
    """Of serve and of the commands that lay one adapter over a model alike."""
    assert AdapterConfig((text,)).by_name == {name: str(Path(path).resolve())}
    config, asked = adapter_at(text)
    assert (asked, config.by_name) == (name, {name: str(Path(path).resolve())})


@pytest.mark.parametrize("text", ["", "=", "=path", "name="])
def test_an_adapter_without_a_name_or_a_path_is_refused(text):
    with pytest.raises(ConfigError, match=r"neither PATH nor NAME=PATH; write --adapter helper=./out"):
        AdapterConfig((text,))


def test_two_adapters_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="one name to several adapters"):
        AdapterConfig(("a/out", "b/out"))
