"""`penstock serve`: a model behind HTTP, its engine in a process of its own."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config import (
    AdapterConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from penstock.errors import ConfigError
from penstock.service.config import ListenConfig, ListenerConfig, RouterConfig, ServerConfig, roles_of
from penstock.service.server.pool.config import PoolConfig, keep_alive_of

KEY_VARIABLE = "PENSTOCK_API_KEY"
ADMIN_VARIABLE = "PENSTOCK_ADMIN_KEY"
REPLICA_VARIABLE = "PENSTOCK_REPLICA_KEY"
KEY_VARIABLES = {"api_key": KEY_VARIABLE, "admin_key": ADMIN_VARIABLE, "router_key": REPLICA_VARIABLE}
"""By the key that each holds."""


@dataclass(frozen=True, slots=True)
class Config:
    """Serve a model over HTTP, as OpenAI's clients know it.

    Without MODEL a small one is fetched and served. Only this machine can reach it unless --host says otherwise.
    """

    step_log: Path | None = None
    """File to write a line a step to: what each was and how long it took, no text; penstock profile --steps fits it"""
    replicas: int = 1
    """Engines of this machine that serve as one, each with its own server, behind a router; SIGHUP restarts them one by one"""
    tuned: bool = True
    """Use the settings that penstock tune found for this model on this machine, where no flag says otherwise"""
    server: ServerConfig = field(default_factory=ServerConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)

    @property
    def engine(self) -> EngineConfig:
        is_fair = self.scheduler.order == "auto" and self.server.num_tenants > 1
        scheduler = replace(self.scheduler, order="fair") if is_fair else self.scheduler
        return EngineConfig(self.model, self.cache, scheduler, self.parallel, self.speculation, self.adapter)


def found_values(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was tuned for this model here, for leaves that neither a flag nor a file gives."""
    from penstock.console.files import cache_folder

    model = str(asked.get("model", ModelConfig().model))
    if asked.get("tuned") is False or asked.get("models") or not (cache_folder() / "tuned").is_dir():
        return {}
    from penstock.cli.tune.kept import values_for
    from penstock.tools.measure.profiles import versions

    values, words = values_for(Config, model, asked, versions())
    if words:
        print(f"penstock: {words}", file=sys.stderr)
    return values


def warn_of_shown_keys(arguments: Sequence[str]) -> None:
    """A command line can be read by every user of this machine who lists processes."""
    for name, variable in KEY_VARIABLES.items():
        flag = f"--{name.replace('_', '-')}"
        if any(word == flag or word.startswith(flag + "=") for word in arguments):
            warning = f"{flag} shows its key to everybody who lists processes; put it into {variable}"
            print(f"penstock: {warning}", file=sys.stderr)


def run(config: Config) -> int:
    warn_of_shown_keys(sys.argv)
    config = replace(config, server=with_key_of_environment(config.server))
    if config.replicas != 1 or len(roles(config)) > 1:
        return run_replicas(config)
    if config.pool.is_asked:
        return run_pool(config)
    from penstock.log import set_up
    from penstock.runtime.engine.spawn import Spawned

    model = config.model.model
    command = worker_command(config, model)
    set_up(config.server.log_level, config.server.log_format)
    with Spawned(command) as spawned:  # it imports torch while we import a web server
        from penstock.assembly.integrity import ModelVerifier
        from penstock.assembly.serving import package_version, serve
        from penstock.assembly.text import fetch, open_text

        fetch(model)
        verifier = ModelVerifier(model, config.engine, package_version())
        return serve(config.engine, config.server, command, lambda: open_text(model), spawned, verifier)


def worker_command(config: Config, model: str) -> list[str]:
    from penstock.runtime.models.ranks import Ranks

    command = [sys.executable, "-m", "penstock.assembly.worker", f"--model={model}"]
    asked = config.parallel
    num_ranks = Ranks(asked.tensor, asked.pipeline, asked.expert).num_ranks // asked.nodes
    if num_ranks > 1:
        command.append(f"--ranks={num_ranks}")
    command.append(f"--log={config.server.log_level}:{config.server.log_format}")
    if config.step_log is not None:
        command.append(f"--step-log={config.step_log.absolute()}")
    if config.server.role is not None:
        if not os.environ.get(REPLICA_VARIABLE):
            raise ConfigError(
                f"--role {config.server.role} lets replicas read each other's blocks; put the key that they and their "
                f"router share into {REPLICA_VARIABLE}"
            )
        command.append(f"--offer={config.server.host}")
    return command


def roles(config: Config) -> tuple[str, ...]:
    """Of each replica; empty where none is asked for."""
    role, count = config.server.role, config.replicas
    if role is None:
        return ()
    found = roles_of(role)
    if len(found) == 1:
        return found * count
    if count not in (1, len(found)):
        raise ConfigError(f"--role {role} is a fleet of {len(found)}; leave out --replicas {count}")
    return found


def run_pool(config: Config) -> int:
    """Several models, each in an engine of its own that comes and goes."""
    from penstock.assembly.pool import PooledEngines, budget_of, entries_of, fetch_all
    from penstock.assembly.serving import serve_engines
    from penstock.log import set_up
    from penstock.tools.measure.environment import ProcessorGroup, read_meminfo
    from penstock.tools.measure.this_machine import machine_facts

    if config.step_log is not None:
        raise ConfigError("--step-log is written by one engine; leave it out where there are several models")
    if config.server.role is not None:
        raise ConfigError("--role is of a server of one model; leave it out where there are several")
    set_up(config.server.log_level, config.server.log_format)
    default = ModelConfig().model
    entries = entries_of(config.pool, None if config.model.model == default else config.model.model)
    fetch_all(entries)
    server = config.server
    is_gpu = config.model.device == "cuda" or (config.model.device == "auto" and bool(machine_facts()["gpus"]))
    if is_gpu and config.pool.models_memory is None:
        raise ConfigError(
            "several models share the GPU's memory; say with --models-memory how much of it they may take"
        )
    memory = read_meminfo().get("MemAvailable")
    free_bytes = None if memory is None else min(memory, ProcessorGroup().free_bytes)
    make = partial(
        PooledEngines,
        entries,
        config.engine,
        server,
        partial(worker_command, config),
        budget_bytes=budget_of(config.pool, config.engine, free_bytes),
        keep_alive_s=keep_alive_of("--keep-alive", config.pool.keep_alive),
    )
    return serve_engines(make, server)


def run_replicas(config: Config) -> int:
    """A router here, and the servers behind it as processes: only the router is seen from outside."""
    from penstock.assembly.fleet.routing import Routing, route
    from penstock.assembly.text import fetch
    from penstock.console.args import arguments_of

    if config.pool.is_asked:
        raise ConfigError("--replicas serves one model; leave --model and --models-dir out, or begin several servers")
    if not 1 <= config.replicas <= 64:
        raise ConfigError(f"--replicas is {config.replicas}; choose 1 to 64")
    own_roles: tuple[str | None, ...] = roles(config) or (None,) * config.replicas
    fetch(config.model.model)
    outer = config.server
    hidden = ListenerConfig(port=0, max_body_mib=outer.max_body_mib, drain_s=outer.drain_s)
    inner = replace(
        outer, admin_key=(), router_key=None, **{one.name: getattr(hidden, one.name) for one in fields(hidden)}
    )
    commands = []
    for number, role in enumerate(own_roles):
        own = replace(inner, role=role)
        if inner.data_dir is not None:  # what a replica keeps is its own
            folder = inner.data_dir / f"replica-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            own = replace(own, data_dir=folder)
        fair = replace(config, replicas=1, tuned=False, server=own, scheduler=config.engine.scheduler)
        words = arguments_of(fair)
        commands.append((sys.executable, "-m", "penstock.cli.fleet.server_process", "serve", *words))
    shared = {one.name: getattr(outer, one.name) for one in fields(ListenerConfig)}
    listen = ListenConfig(**shared | {"api_key": outer.keys})
    key = secrets.token_urlsafe(24)
    router = RouterConfig(otlp_endpoint=outer.otlp_endpoint)
    if outer.role is not None:  # who has what decides who is asked
        router = replace(router, policy="prefix-reported")
    return route(Routing(listen, router, (), replica_key=key, commands=tuple(commands)))


def with_key_of_environment(server: ServerConfig) -> ServerConfig:
    """The keys that no process list shows."""
    for name, variable in KEY_VARIABLES.items():
        given: Any = getattr(server, name)
        if key := os.environ.get(variable):
            given = (*given, key) if isinstance(given, tuple) else key
            server = replace(server, **{name: given})
    server.check_keyed()
    return server
