"""How a candidate is launched: what the engine lacks for it, the command that starts it, and the config file.

The file holds only what `serve` and `simulate` both understand. What the engine cannot do is said in words, never written as if
it worked.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.cli import serve
from penstock.config import AdapterConfig, CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, Weights
from penstock.console.args import arguments_of
from penstock.console.flags import flags_of
from penstock.errors import PenstockError
from penstock.runtime.models.ranks import Ranks
from penstock.service.config import ServerConfig
from penstock.tools.cost.unserved import MADE_WEIGHTS, unserved
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.search import Option
from penstock.tools.sim.replica.adapters import AskedAdapters

ADAPTERS_DIR = "ADAPTERS"
"""Stands for the directory that adapters lie in."""
RENDEZVOUS = "HOST:29500"
"""Stands for an address of the first of several machines."""


UNTRIED = "untried on several GPUs"


def standing(candidate: Candidate, gaps: Sequence[str]) -> str:
    """Whether it runs today: what several GPUs do together nobody has run yet."""
    if gaps:
        return "not yet"
    return UNTRIED if candidate.hardware.kind == "gpu" and candidate.layout.devices_per_copy > 1 else "yes"


def gaps_of(candidate: Candidate) -> tuple[str, ...]:
    """What stands between a candidate and its launch today."""
    return (*_layout_gaps(candidate), *unserved(candidate.spec, candidate.weights, candidate.kv))


def _layout_gaps(candidate: Candidate) -> list[str]:
    layout, most = candidate.layout, candidate.hardware.devices_per_machine
    if layout.tensor > most or layout.pipeline % nodes_of(candidate):
        return [f"{layout}: machines of {most} devices have whole stages each, as many on each"]
    if layout.num_sharing > 1:
        return [f"{layout}: copies of attention with requests of their own do not share experts yet"]
    try:
        Ranks(layout.tensor, layout.pipeline, layout.expert).check(candidate.spec)
    except PenstockError as error:
        return [str(error)]
    return []


def nodes_of(candidate: Candidate) -> int:
    """Machines that one copy takes."""
    return -(-candidate.layout.devices_per_copy // candidate.hardware.devices_per_machine)


def serve_config(candidate: Candidate, source: str, port: int = 8000) -> serve.Config:
    """What serve must be told so that its engine is the one that was simulated."""
    weights: Weights = "fp8" if candidate.weights == "fp8" else "auto"
    if candidate.weights in MADE_WEIGHTS and candidate.hardware.kind == "gpu":
        weights = "packed"
    layout, nodes = candidate.layout, nodes_of(candidate)
    return serve.Config(
        server=ServerConfig(port=port),
        model=ModelConfig(served(candidate, source), weights=weights, max_context=candidate.max_context),
        cache=replace(CacheConfig(), kv={"fp8": "fp8", "int8": "int8"}.get(candidate.kv, "auto")),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_batch_tokens=candidate.max_batch_tokens, max_sequences=candidate.max_sequences),
        parallel=ParallelConfig(
            layout.tensor, layout.pipeline, layout.expert, nodes, RENDEZVOUS if nodes > 1 else None
        ),
        adapter=_adapters(candidate.adapters),
    )


def _adapters(asked: AskedAdapters) -> AdapterConfig:
    if not asked.adapters:
        return AdapterConfig()
    return AdapterConfig(
        adapters_dir=ADAPTERS_DIR, max_adapters=asked.num_slots, max_adapter_rank=max(64, asked.adapter_rank)
    )


def served(candidate: Candidate, source: str) -> str:
    """What serve is told: the source, or the folder that a made format is written to."""
    if candidate.weights not in MADE_WEIGHTS:
        return source
    return f"{source.rstrip('/').rpartition('/')[2].rpartition(':')[2]}-{candidate.weights}"


def making(candidate: Candidate, source: str) -> list[str]:
    """The command that writes the weights, where they have to be made first."""
    if candidate.weights not in MADE_WEIGHTS:
        return []
    return [shlex.join(["penstock", "quantize", source, "--to", candidate.weights, "--out", served(candidate, source)])]


def command(candidate: Candidate, source: str, port: int = 8000) -> str:
    return shlex.join(["penstock", "serve", *arguments_of(serve_config(candidate, source, port))])


def launch_lines(option: Option, source: str) -> list[str]:
    """Commands, one a replica, or the words that say why there are none."""
    candidate = option.candidate
    if option.gaps:
        return [f"not yet: {gap}" for gap in option.gaps]
    if not source:
        return ["give the model's directory, file or hf:ORG/NAME to get its command"]
    made = making(candidate, source)
    return [*made, *_commands(option, source), *([f"# {UNTRIED}"] if standing(candidate, ()) == UNTRIED else [])]


def _commands(option: Option, source: str) -> list[str]:
    candidate = option.candidate
    count, nodes = max(option.num_replicas, 1), nodes_of(candidate)
    others = [f"penstock rank {RENDEZVOUS}"] if nodes > 1 else []  # on every further machine
    if count == 1:
        return [command(candidate, source), *others]
    if others:
        return [command(candidate, source), *others, f"... {count} such in all; or all by penstock up"]
    shown = [command(candidate, source, 8000 + number) for number in range(min(count, 2))]
    if candidate.hardware.kind == "gpu":
        each = candidate.layout.devices_per_copy
        groups = [range(number * each, (number + 1) * each) for number in range(len(shown))]
        shown = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, group))} {line}" for group, line in zip(groups, shown)]
    return [*shown, f"... {count} in all, each on a port of its own, behind penstock route; or all by penstock up"]


def simulate_command(option: Option, model: str, config_path: str, profile: Path | None = None) -> str:
    candidate, layout = option.candidate, option.candidate.layout
    what = ["--model", model, "--hardware", candidate.hardware.name] if profile is None else ["--profile", str(profile)]
    words = ["penstock", "simulate", *what, "--config", config_path]
    words += ["--replicas", str(max(option.num_replicas, 1) * layout.data)]
    for name in ("tensor", "pipeline", "expert"):
        if getattr(layout, name) > 1:
            words += [f"--{name}", str(getattr(layout, name))]
    return shlex.join(words)


def config_text(option: Option, model: str, source: str, path: str, profile: Path | None = None) -> str:
    """A TOML file that `serve --config` and `simulate --config` both read."""
    lines = [f"# {model} on {option.candidate.name}: {option.num_replicas} of these"]
    if source:
        lines += [f"# {line}" for line in making(option.candidate, source)]
        source = served(option.candidate, source)
    if option.gaps:
        lines += [f"# The engine cannot run this layout yet: {gap}" for gap in option.gaps]
    else:
        nodes = nodes_of(option.candidate)
        spread = ["--nodes", str(nodes), "--rendezvous", RENDEZVOUS] if nodes > 1 else []
        lines.append(f"# {shlex.join(['penstock', 'serve', source or 'MODEL', '--config', path, *spread])}")
    lines.append(f"# {simulate_command(option, model, path, profile)}")
    return "\n".join([*lines, "", *_settings(option.candidate), ""])


def cluster_text(option: Option, model: str, source: str, path: str) -> str:
    """A TOML file that `up` takes: the same engine, so many of them."""
    candidate, count = option.candidate, max(option.num_replicas, 1)
    lines = [f"# {model} on {candidate.name}: {count} replicas", f"# {shlex.join(['penstock', 'up', path])}", ""]
    values = [f"model = {json.dumps(served(candidate, source))}", f"min-replicas = {count}", f"max-replicas = {count}"]
    if candidate.hardware.kind == "gpu":
        values.append('device = "cuda"')
    if nodes_of(candidate) > 1:
        values.append(f"nodes = {nodes_of(candidate)}")
    return "\n".join([*lines, *values, *_settings(candidate), ""])


SETTINGS = ("max_sequences", "max_batch_tokens", "weights", "kv", "max_context", "tensor", "pipeline", "expert")
LIMITS = ("max_sequences", "max_batch_tokens")
"""Of the settings, those that are written whatever they are."""


def _settings(candidate: Candidate) -> list[str]:
    """Lines of a config file: what of `serve` differs from its defaults, as far as `simulate` knows it too."""
    config = serve_config(candidate, "")
    found = {flag.name: flag for flag in flags_of(serve.Config)}
    flags = [found[name] for name in SETTINGS]
    values = {
        flag.key: flag.value_in(config)
        for flag in flags
        if flag.name in LIMITS or flag.value_in(config) != flag.default
    }
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]
