"""An engine's peers, as asked for."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.runtime.core.kinds.groups import PLAIN
from penstock.runtime.core.runner import BlockRunner, CopyingRunner, Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.exchange import PeerExchange


class PeerSettings(NamedTuple):
    """How an engine meets others."""

    host: str
    """Address to offer blocks on."""
    key: bytes
    """What all of them know."""


def other_kinds(config: EngineConfig, model: str) -> str:
    """Why blocks of full attention are not all there is."""
    long_context = config.cache.long_context
    return f"{model} has other kinds too" if long_context == "full" else f"--long-context {long_context} keeps none"


def make_peers(
    settings: PeerSettings | None,
    config: EngineConfig,
    format: Callable[[BlockRunner], bytes],
    scheduler: Scheduler,
    runner: Runner,
) -> PeerExchange | None:
    """None where none are asked for. `format` names what decides a block's bytes besides tokens."""
    if settings is None:
        return None
    if not config.cache.prefix_caching:
        raise ConfigError("--role moves blocks of cached prefixes; leave out --no-prefix-caching")
    if scheduler.pool.groups is not PLAIN:  # such a runner may have no pages to speak of
        kinds = other_kinds(config, "this model")
        raise ConfigError(f"--role moves blocks of full attention; {kinds}: leave it out")
    if not isinstance(runner, BlockRunner):
        raise ConfigError("--role works for a model in one process; leave out --tensor and --pipeline")
    if isinstance(runner, CopyingRunner) and config.cache.kv_host is None and config.cache.kv_disk is None:
        runner.pin(0)  # tiers have done so else
    return PeerExchange(scheduler, runner, format(runner), settings.key, settings.host)
