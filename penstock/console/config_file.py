"""Config files: the flags of a command kept in TOML or JSON.

A key is a flag's name without its dashes, kebab or snake case, at the top or under tables named after the fields that
hold it (`[cache]`, `[engine.cache]`). Reading only collects values; building and checking the config is `args.build`.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.console.files import read_text
from penstock.console.flags import Flag, by_tables, flags_of, suggestion
from penstock.console.help import flag_help
from penstock.errors import ConfigError
from penstock.fields import field_docstrings


def read(config: type, path: str) -> dict[str, Any]:
    """The values a file gives to the leaves of a config, by field name. `.json` is JSON, anything else TOML."""
    return values_in(config, load(path), path)


def values_in(config: type, data: dict[str, Any], name: str) -> dict[str, Any]:
    """The values that tables and keys give to the leaves of a config; `name` is what an error calls them."""
    values: dict[str, Any] = {}
    for flag, value, key in _entries(name, flags_of(config), data, ()):
        if flag.name in values:
            raise ConfigError(f"{name}: {key} is given twice")
        values[flag.name] = flag.from_data(value, f"{name}: {key}")
    return values


def load(path: str) -> dict[str, Any]:
    """A file's tables and keys as they are written."""
    text = read_text(Path(path), "name a config file")
    is_json = path.endswith(".json")
    try:
        data = json.loads(text, object_pairs_hook=_unrepeated) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not {'JSON' if is_json else 'TOML'}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no settings: the outermost value must be an object of keys")
    return data


def as_data(config: Any) -> dict[str, Any]:
    """A config as JSON holds it, in its tables; `values_in` reads it back."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return data


def write(config: object) -> str:
    """A config as a TOML file that reads back as the same config, each key under its help."""
    lines: list[str] = []
    for tables, flags in by_tables(flags_of(type(config))).items():
        docstrings = field_docstrings(flags[0].owner)
        lines += [f"[{'.'.join(tables)}]"] if tables else []
        for flag in flags:
            value = flag.value_in(config)
            lines.append(f"# {flag_help(flag, docstrings)}")
            lines.append(f"# {flag.key} =" if value is None else f"{flag.key} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _entries(
    path: str, flags: Sequence[Flag], data: dict[str, Any], tables: tuple[str, ...]
) -> Iterator[tuple[Flag, Any, str]]:
    """Each leaf with its value and its key as written. Tables may be left out; those written must lead to the leaf."""
    leaves = {flag.name: flag for flag in flags}
    inner = {table for flag in flags for table in flag.tables} - set(tables)
    for key, value in data.items():
        name = key.replace("-", "_")
        if isinstance(value, dict) and name in inner:
            yield from _entries(path, [flag for flag in flags if name in flag.tables], value, (*tables, name))
        elif name in leaves:
            yield leaves[name], value, key
        else:
            known = [name.replace("_", "-") for name in (*leaves, *inner)]
            where = f" in [{'.'.join(tables)}]" if tables else ""
            raise ConfigError(f"{path}: unknown key {key}{where}{suggestion(key.replace('_', '-'), known)}")


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is repeated among {', '.join(key for key, _ in pairs)}")
    return found


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    # JSON's escapes are TOML's, but for the delete character, which TOML alone wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
