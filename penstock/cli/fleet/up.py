"""`penstock up`: a service of replicas on a Ray cluster, with a router in front."""

import contextlib
import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.cli.serve import KEY_VARIABLE
from penstock.cli.serve import Config as ServeConfig
from penstock.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig
from penstock.console import args, config_file
from penstock.errors import ConfigError
from penstock.runtime.models.ranks import Ranks
from penstock.service.config import ClusterConfig, ListenConfig, RouterConfig, ServerConfig

FILE = ".toml"
COLD_START_S = 120.0
"""A request that finds no replica waits at least this long: one may be starting for it."""


@dataclass(frozen=True, slots=True)
class Config:
    """Place replicas of a model on a Ray cluster, route to them, replace and scale them.

    Name a model, or a file such as penstock plan --emit writes: `penstock up cluster.toml`. Flags beside a file win over it.
    """

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


def _has_loopback_cluster() -> bool:
    """By the words of the processes here, which is how Ray finds one too."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"--gcs-address=127.0.0.1:" in path.read_bytes():
                return True
    return False


def stay_on_loopback(address: str) -> None:
    """Before Ray is imported: a cluster of our own listens on this machine's own address, and who looks for it asks there.

    Ray takes 127.0.0.1 for the address by which others reach this machine, and then listens on all, unless it believes to be
    on a system without clusters. Whoever reaches its ports can run anything here.
    """
    if address in ("local", "auto" if _has_loopback_cluster() else "") or address.startswith("127.0.0.1:"):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def run(config: Config) -> int:
    config = _with_file(config)
    stay_on_loopback(config.cluster.address)
    try:
        from penstock.assembly.fleet.cluster import Cluster, run_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("penstock up places replicas with Ray; pip install 'penstock[cluster]'") from error
    key = os.environ.get(KEY_VARIABLE)
    listen = replace(config.listen, api_key=(*config.listen.api_key, key)) if key else config.listen
    listen.check_keyed()
    asked, layout = config.cluster, config.parallel
    num_ranks = Ranks(layout.tensor, layout.pipeline, layout.expert).num_ranks // layout.nodes  # on one node
    on_gpus = num_ranks if config.model.device == "cuda" else 0
    replica_key = secrets.token_urlsafe(24)
    serve = ServeConfig(
        server=ServerConfig(router_key=replica_key),
        model=config.model,
        cache=config.cache,
        scheduler=config.scheduler,
        parallel=config.parallel,
    )
    return run_cluster(
        Cluster(
            config=asked,
            listen=listen,
            router=replace(config.router, wait_s=max(config.router.wait_s, COLD_START_S)),
            serve=config_file.write(serve),
            replica_key=replica_key,
            num_cpus=num_ranks if asked.replica_cpus is None else asked.replica_cpus,
            num_gpus=on_gpus if asked.replica_gpus is None else asked.replica_gpus,
            num_nodes=config.parallel.nodes,
        )
    )


def _with_file(config: Config) -> Config:
    """What a file says, where no flag said otherwise."""
    path = config.model.model
    if not path.endswith(FILE):
        return config
    given = config_file.read(Config, path)
    if "model" not in given:
        raise ConfigError(f'{path} names no model; give it a line: model = "..."')
    said = args.parse(Config, args.arguments_of(config)).values
    return args.build(Config, {**given, **said, "model": given["model"]})
