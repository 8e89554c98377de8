"""`penstock serve`: a model behind HTTP, its engine in a process of its own."""

import os
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from penstock.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)

KEY_VARIABLE = "PENSTOCK_API_KEY"


@dataclass(frozen=True, slots=True)
class Config:
    """Serve a model over HTTP, as OpenAI's clients know it.

    Without MODEL a small one is fetched and served. Only this machine can reach it unless --host says otherwise.
    """

    step_log: Path | None = None
    """File to write a line a step to: what each was and how long it took, no text; penstock profile --steps fits it"""
    server: ServerConfig = field(default_factory=ServerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    @property
    def engine(self) -> EngineConfig:
        is_fair = self.scheduler.order == "auto" and len(self.server.api_key) > 1
        scheduler = replace(self.scheduler, order="fair") if is_fair else self.scheduler
        return EngineConfig(self.model, self.cache, scheduler, self.parallel, self.speculation)


def run(config: Config) -> int:
    from penstock.engine.spawn import Spawned
    from penstock.log import set_up

    model = config.model.model
    command = [sys.executable, "-m", "penstock.assembly.worker", f"--model={model}"]
    set_up(config.server.log_level, config.server.log_format)
    command.append(f"--log={config.server.log_level}:{config.server.log_format}")
    if config.step_log is not None:
        command.append(f"--step-log={config.step_log.absolute()}")
    with Spawned(command) as spawned:  # it imports torch while we import a web server
        from penstock.assembly.integrity import Canary, damage_of
        from penstock.assembly.serving import package_version, serve
        from penstock.assembly.text import fetch, fetched_path, open_text
        from penstock.measure.this_machine import cache_folder, machine_facts

        fetch(model)
        server = with_key_of_environment(config.server)
        path = fetched_path(model)
        damage = None if path is None else partial(damage_of, path)
        machine = machine_facts()
        facts = {"version": package_version(), "machine": machine, "engine": asdict(config.engine), "path": path}
        canary = None if path is None or machine["gpus"] else Canary(cache_folder(), facts)
        return serve(config.engine, server, command, lambda: open_text(model), spawned, damage, canary)


def with_key_of_environment(server: ServerConfig) -> ServerConfig:
    """The key that no process list shows."""
    key = os.environ.get(KEY_VARIABLE)
    return replace(server, api_key=(*server.api_key, key)) if key else server
