"""Where tuned settings are kept, by model and machine, and how `serve` finds them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.console import config_file
from penstock.console.files import cache_folder, write_file
from penstock.errors import ConfigError
from penstock.tools.measure.this_machine import fingerprint, machine_facts
from penstock.tools.tune.evidence import Tuned, read_tuned, stale
from penstock.tools.tune.setting import flags_in_words

MAX_BYTES = 1 << 20


def tuned_path(model: str) -> Path:
    """The config file of a model on this machine; its evidence lies beside it."""
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in model)[-80:]
    return cache_folder() / "tuned" / f"{name}-{fingerprint(machine_facts())}.toml"


def keep(path: Path, tuned: Tuned) -> None:
    write_file(path, tuned.to_toml())
    write_file(path.with_suffix(".json"), tuned.to_json())


def values_for(
    owner: type, model: str, asked: Mapping[str, Any], versions: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Values kept for this model here, for leaves that are not asked otherwise, and a line that says so. What cannot be read is
    as good as none."""
    path = tuned_path(model)
    beside = path.with_suffix(".json")
    try:
        if not path.exists() or beside.stat().st_size > MAX_BYTES:
            return {}, ""
        tuned = read_tuned(beside.read_text(encoding="utf-8"), str(beside))
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}, ""
    if why_stale := stale(tuned, versions):
        return {}, f"tuned settings in {path} are not used: {why_stale}; tune again with penstock tune"
    values = {name: value for name, value in config_file.read(owner, str(path)).items() if name not in asked}
    if not values:
        return {}, ""
    said = f"tuned: {tuned.gain_words} requests served in time ({tuned.when}): {flags_in_words(values)}"
    return values, f"{said}; --no-tuned leaves it out"
