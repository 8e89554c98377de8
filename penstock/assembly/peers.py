"""An engine's peers, as asked for."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.runtime.core.kinds.groups import PLAIN
from penstock.runtime.core.runner import BlockRunner, Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.exchange import PeerExchange


class PeerSettings(NamedTuple):
    """How an engine meets others."""

    host: str
    """Address to offer blocks on."""
    key: bytes
    """What all of them know."""


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
    if not isinstance(runner, BlockRunner):
        raise ConfigError("--role works for a model in one process; leave out --tensor and --pipeline")
    if scheduler.pool.groups is not PLAIN:
        raise ConfigError(
            "--role moves blocks of full attention, and this model has other kinds of cache too; leave it out"
        )
    return PeerExchange(scheduler, runner, format(runner), settings.key, settings.host)
