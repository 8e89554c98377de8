"""The model that `penstock eval` measures, opened: as it is served, or with activations in 8 bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.evaluate.config import Config, engine_config
from penstock.cli.loading import open_llm
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.offline.llm import LLM


@contextmanager
def open_measured(config: Config) -> Iterator["LLM"]:
    if config.activations == "served":
        with open_llm(engine_config(config, config.model)) as llm:
            yield llm
        return
    if config.model.dtype not in ("auto", "float32"):
        raise ConfigError("--activations computes in float32; leave --dtype out")
    with open_llm(engine_config(config, replace(config.model, dtype="float32"))) as llm:
        from penstock.runtime.layers.decoder import Decoder
        from penstock.tools.evaluate.activations import round_inputs

        network = llm.loaded.network
        if not isinstance(network, Decoder):
            raise ConfigError("--activations takes a decoder on one device; leave --tensor and --pipeline out")
        round_inputs(network, config.activations)
        yield llm
