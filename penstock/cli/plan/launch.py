"""How a candidate is launched: what the engine lacks for it, the command that starts it, and the config file.

The file holds only what `serve` and `simulate` both understand. What the engine cannot do is said in words, never written as if
it worked.
"""

import shlex
from dataclasses import replace
from pathlib import Path

from penstock.cli import serve
from penstock.config import CacheConfig, ModelConfig, SchedulerConfig, ServerConfig
from penstock.console.args import arguments_of
from penstock.models.spec import GQA
from penstock.planner.candidate import Candidate
from penstock.planner.search import Option

SERVED_WEIGHTS = ("bf16", "fp8", "file")
"""Number formats that serve can be asked for, or that a file brings."""
SERVED_KV = ("bf16", "fp8", "int8")


def gaps_of(candidate: Candidate) -> tuple[str, ...]:
    """What stands between a candidate and its launch today."""
    gaps = []
    if not all(isinstance(layer.attention, GQA) for layer in candidate.spec.layers):
        gaps.append("latent attention (MLA) is not computed yet")
    if candidate.num_devices > 1:
        gaps.append(f"a model over several devices ({candidate.layout}): an engine runs on one device so far")
    if candidate.weights not in SERVED_WEIGHTS:
        gaps.append(f"{candidate.weights} weights made at load: serve keeps weights as the file has them, or in fp8")
    if candidate.kv not in SERVED_KV:
        gaps.append(f"{candidate.kv} KV")
    return tuple(gaps)


def serve_config(candidate: Candidate, source: str, port: int = 8000) -> serve.Config:
    """What serve must be told so that its engine is the one that was simulated."""
    is_fp8 = candidate.weights == "fp8"
    return serve.Config(
        server=ServerConfig(port=port),
        model=ModelConfig(source, weights="fp8" if is_fp8 else "auto", max_context=candidate.max_context),
        cache=replace(CacheConfig(), kv={"fp8": "fp8", "int8": "int8"}.get(candidate.kv, "auto")),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_batch_tokens=candidate.max_batch_tokens, max_sequences=candidate.max_sequences),
    )


def command(candidate: Candidate, source: str, port: int = 8000) -> str:
    return shlex.join(["penstock", "serve", *arguments_of(serve_config(candidate, source, port))])


def launch_lines(option: Option, source: str) -> list[str]:
    """Commands, one a replica, or the words that say why there are none."""
    candidate = option.candidate
    if option.gaps:
        return [f"not yet: {gap}" for gap in option.gaps]
    if not source:
        return ["give the model's directory, file or hf:ORG/NAME to get its command"]
    count = max(option.num_replicas, 1)
    if count == 1:
        return [command(candidate, source)]
    shown = [command(candidate, source, 8000 + number) for number in range(min(count, 2))]
    if candidate.hardware.kind == "gpu":
        shown = [f"CUDA_VISIBLE_DEVICES={number} {line}" for number, line in enumerate(shown)]
    return [*shown, f"... {count} in all, each on a device and a port of its own, behind a load balancer"]


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
    candidate = option.candidate
    values: dict[str, str] = {
        "max-sequences": str(candidate.max_sequences),
        "max-batch-tokens": str(candidate.max_batch_tokens),
    }
    if candidate.weights == "fp8":
        values["weights"] = '"fp8"'
    if candidate.kv != "bf16":
        values["kv"] = f'"{candidate.kv}"'
    if candidate.max_context is not None:
        values["max-context"] = str(candidate.max_context)
    lines = [f"# {model} on {candidate.name}: {option.num_replicas} of these"]
    if option.gaps:
        lines += [f"# The engine cannot run this layout yet: {gap}" for gap in option.gaps]
    else:
        lines.append(f"# {shlex.join(['penstock', 'serve', source or 'MODEL', '--config', path])}")
    lines.append(f"# {simulate_command(option, model, path, profile)}")
    return "\n".join([*lines, "", *(f"{key} = {value}" for key, value in values.items()), ""])
