"""The tiers of a KV cache, as asked for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.assembly.peers import other_kinds
from penstock.config import EngineConfig, bytes_of
from penstock.errors import ConfigError
from penstock.runtime.core.kinds.groups import PLAIN
from penstock.runtime.core.runner import BlockRunner, CopyingRunner, Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.record import RECORD_ORDER, format_digest
from penstock.runtime.engine.tiers.tiers import KVTiers
from penstock.runtime.models.spec import ModelSpec

STAGING_BYTES = 256 << 20
"""Host memory in front of a disk, unless asked: records wait there to be written, and those just read stay a while."""

COPY_THREADS = 8
"""Threads that wait for copies, which go one after another each way."""


def format_of(config: EngineConfig, spec: ModelSpec, weights: Callable[[], str], runner: BlockRunner) -> bytes:
    """Names all that decides a block's bytes besides its tokens."""
    return format_digest(
        weights(), repr(spec), config.model.weights, runner.kv_format, config.cache.block_size, RECORD_ORDER
    )


def make_tiers(
    config: EngineConfig, spec: ModelSpec, weights: Callable[[], str], scheduler: Scheduler, runner: Runner
) -> KVTiers | None:
    """None where none is asked for. `weights` gives their digest, if it is needed."""
    cache = config.cache
    if cache.kv_host is None and cache.kv_disk is None:
        return None
    if not cache.prefix_caching:
        raise ConfigError("--kv-host and --kv-disk keep cached prefixes; leave out --no-prefix-caching")
    if scheduler.pool.groups is not PLAIN:  # such a runner may have no pages to speak of
        kinds = other_kinds(config, spec.architecture)
        raise ConfigError(f"--kv-host and --kv-disk keep blocks of full attention; {kinds}: leave them out")
    if not isinstance(runner, BlockRunner):
        raise ConfigError("--kv-host and --kv-disk work for a model in one process; leave out --tensor and --pipeline")
    format = format_of(config, spec, weights, runner)
    host_bytes = STAGING_BYTES if cache.kv_host is None else bytes_of("--kv-host", cache.kv_host)
    disk = None
    if cache.kv_disk is not None:
        disk = DiskTier(Path(cache.kv_disk).expanduser(), bytes_of("kv-disk-size", cache.kv_disk_size))
    reader = ThreadPoolExecutor(1, thread_name_prefix="kv-tiers")
    waiter = None
    if isinstance(runner, CopyingRunner):
        runner.pin(host_bytes)
        waiter = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="kv-copies")
    return KVTiers(scheduler, runner, format, reader, host=HostTier(host_bytes), disk=disk, waiter=waiter)
