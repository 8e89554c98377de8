"""`penstock route`: many servers as one."""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.cli.serve import ADMIN_VARIABLE, KEY_VARIABLE, REPLICA_VARIABLE, warn_of_shown_keys
from penstock.errors import ConfigError
from penstock.service.config import ListenConfig, RouterConfig

METRICS_VARIABLE = "PENSTOCK_METRICS_KEY"


@dataclass(frozen=True, slots=True)
class Config:
    """Serve many replicas as one: route, retry, fail over, drain.

    Replicas are servers of Penstock, vLLM, SGLang or llama.cpp. PENSTOCK_REPLICA_KEY holds the key they ask for,
    PENSTOCK_METRICS_KEY one that reads /metrics and nothing else.
    """

    replica: tuple[str, ...] = ()
    """Address of a server to send requests to, http://HOST:PORT or NAME=http://HOST:PORT"""
    replicas_file: Path | None = None
    """File with an address a line, looked at all the time: replicas come and go with its lines"""
    gateway: Path | None = None
    """File with tiers, tenants, prices and names of models: only keys of its database are let in"""
    listen: ListenConfig = field(default_factory=ListenConfig)
    router: RouterConfig = field(default_factory=RouterConfig)


def run(config: Config) -> int:
    from penstock.assembly.fleet.routing import Routing, route

    warn_of_shown_keys(sys.argv)
    key = os.environ.get(KEY_VARIABLE)
    listen = replace(config.listen, api_key=(*config.listen.api_key, key)) if key else config.listen
    if not config.replica and config.replicas_file is None:
        raise ConfigError("there is no replica to route to; name servers with --replica or --replicas-file")
    if config.gateway is None:
        listen.check_keyed()
    elif listen.jwt is not None:
        raise ConfigError("a gateway has its own table [jwt]; put it into the file of --gateway and leave --jwt out")
    admin_key = os.environ.get(ADMIN_VARIABLE, "")
    if listen.admin_port is not None and len(admin_key) < 8:
        raise ConfigError(f"--admin-port needs a key of 8 characters or more in {ADMIN_VARIABLE}")
    replica_key = os.environ.get(REPLICA_VARIABLE, "")
    metrics_key = os.environ.get(METRICS_VARIABLE, "")
    if metrics_key and len(metrics_key) < 8:
        raise ConfigError(f"{METRICS_VARIABLE} has fewer than 8 characters; choose a longer key")
    return route(
        Routing(
            listen,
            config.router,
            config.replica,
            config.replicas_file,
            replica_key,
            admin_key,
            config.gateway,
            metrics_key=metrics_key,
        )
    )
