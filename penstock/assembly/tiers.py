"""The tiers of a KV cache, as asked for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from penstock.config import EngineConfig, bytes_of
from penstock.errors import ConfigError
from penstock.runtime.core.kinds.groups import PLAIN
from penstock.runtime.core.runner import BlockRunner, Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.exchange import PeerExchange
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.record import RECORD_ORDER, format_digest
from penstock.runtime.engine.tiers.tiers import KVTiers
from penstock.runtime.models.spec import ModelSpec

STAGING_BYTES = 256 << 20
"""Host memory in front of a disk, unless asked: records wait there to be written, and those just read stay a while."""


class PeerSettings(NamedTuple):
    """How an engine meets others."""

    host: str
    """Address to offer blocks on."""
    key: bytes
    """What all of them know."""


def make_tiers(
    config: EngineConfig,
    spec: ModelSpec,
    weights: Callable[[], str],
    scheduler: Scheduler,
    runner: Runner,
    peers: PeerSettings | None = None,
) -> KVTiers | None:
    """None where none is asked for. `weights` gives their digest, if it is needed."""
    cache = config.cache
    if cache.kv_host is None and cache.kv_disk is None and peers is None:
        return None
    flags = "--role" if cache.kv_host is None and cache.kv_disk is None else "--kv-host and --kv-disk"
    if not cache.prefix_caching:
        raise ConfigError(f"{flags} need cached prefixes; leave out --no-prefix-caching")
    if not isinstance(runner, BlockRunner):
        raise ConfigError(f"{flags} work for a model in one process; leave out --tensor and --pipeline")
    if scheduler.pool.groups is not PLAIN:
        raise ConfigError(f"{flags} move blocks of full attention; {spec.architecture} has other kinds too")
    format = format_digest(
        weights(), repr(spec), config.model.weights, runner.kv_format, cache.block_size, RECORD_ORDER
    )
    return _tiers(config, format, scheduler, runner, peers)


def make_oracle_tiers(
    config: EngineConfig, vocab_size: int, scheduler: Scheduler, runner: BlockRunner, peers: PeerSettings | None
) -> KVTiers | None:
    """Of a model made of arithmetic: to try peers with."""
    if peers is None:
        return None
    return _tiers(config, format_digest("oracle", vocab_size, config.cache.block_size), scheduler, runner, peers)


def _tiers(
    config: EngineConfig, format: bytes, scheduler: Scheduler, runner: BlockRunner, peers: PeerSettings | None
) -> KVTiers:
    cache, disk = config.cache, None
    if cache.kv_disk is not None:
        disk = DiskTier(Path(cache.kv_disk).expanduser(), bytes_of("--kv-disk-size", cache.kv_disk_size))
    host_bytes = 0 if disk is None else STAGING_BYTES
    if cache.kv_host is not None:
        host_bytes = bytes_of("--kv-host", cache.kv_host)
    exchange = None if peers is None else PeerExchange(scheduler.pool, runner, format, peers.key, peers.host)
    reader = ThreadPoolExecutor(1, thread_name_prefix="kv-tiers")
    return KVTiers(scheduler, runner, format, reader, host=HostTier(host_bytes), disk=disk, peers=exchange)
