"""Command lines as configs: words after a command's name become a frozen dataclass, and back.

Owns the grammar of a command line. What a flag is and takes lies in `flags`; files and screens are not known here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from penstock.console.flags import Flag, default_of, flags_of, listed, suggestion
from penstock.errors import ConfigError

C = TypeVar("C")

FINAL_FLAGS = ("--help", "--print-config")
NAMED = re.compile(r"[a-z][\w-]*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line says, before files and defaults are applied."""

    values: Mapping[str, Any]
    files: tuple[str, ...] = ()
    """Config files to read, the later ones winning."""
    wants_help: bool = False
    wants_config: bool = False


def parse(config: type, words: Sequence[str]) -> Arguments:
    """Read the words after a command's name. `--help` ends the reading; `--` ends the flags."""
    flags = flags_of(config)
    switches = _switches(flags)
    values: dict[str, Any] = {}
    files: list[str] = []
    places: list[str] = []
    wants_config = False
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            places.extend(remaining)
        elif word == "-" or not word.startswith("-"):
            named = _named(flags, word)
            if named is None:
                places.append(word)
            else:
                values[named.name] = _set(named, values.get(named.name, ()), word.partition("=")[2])
        elif word in ("-h", "--help"):
            return Arguments({}, wants_help=True)
        elif word == "--print-config":
            wants_config = True
        else:
            name, has_value, text = word.partition("=")
            if name not in switches:
                raise _unknown(name, flags, switches)
            flag, is_set = switches[name]
            if flag is not None and (not is_set or flag.kind is bool):
                if has_value:
                    opposite = f"--{'no-' * is_set}{flag.switch}"
                    raise ConfigError(f"{name} takes no value; write it alone, or {opposite} instead")
                values[flag.name] = True if is_set else flag.empty
                continue
            text = text if has_value else _next_value(name, remaining, switches)
            if flag is None:
                files.append(text)
            else:
                values[flag.name] = _joined(flag, values.get(flag.name, ()), text)
    values.update(_placed(flags, places))
    return Arguments(values, tuple(files), wants_config=wants_config)


def build(config: type[C], values: Mapping[str, Any]) -> C:
    """The config with these leaves set and the others at their defaults."""
    missing = [flag.label for flag in flags_of(config) if flag.default is MISSING and flag.name not in values]
    if missing:
        raise ConfigError(f"missing {listed(missing, 'and')}; see --help")
    built: C = _built(config, MISSING, values)
    return built


def arguments_of(config: object) -> list[str]:
    """The shortest command line that builds this very config."""
    words: list[str] = []
    places: list[str] = []
    for flag in flags_of(type(config)):
        value = flag.value_in(config)
        if value == flag.default:
            continue
        items = [str(item) for item in value] if flag.is_many else [str(value)]
        if flag.is_positional:
            places.extend(items)
        elif flag.is_setting:
            words.extend([f"{flag.key}="] if value == flag.empty else [f"{flag.key}={_word(item)}" for item in items])
        elif value == flag.empty:
            words.append(f"--no-{flag.switch}")
        elif flag.kind is bool:
            words.append(f"--{flag.switch}")
        else:
            for item in items:
                words.extend([f"--{flag.switch}={item}"] if item.startswith("-") else [f"--{flag.switch}", item])
    return [*words, *(["--"] if any(map(_is_mistakable, places)) else []), *places]


def _switches(flags: Sequence[Flag]) -> dict[str, tuple[Flag | None, bool]]:
    """Every word that begins a flag, with its flag and whether it sets or clears it. Only `--config` has no flag."""
    switches: dict[str, tuple[Flag | None, bool]] = {}
    for flag in flags:
        if not flag.is_positional and not flag.is_setting:
            switches[f"--{flag.switch}"] = (flag, True)
            if flag.empty is not MISSING:
                switches[f"--no-{flag.switch}"] = (flag, False)
    return switches | {"--config": (None, True)}


def _unknown(name: str, flags: Sequence[Flag], switches: Mapping[str, object]) -> ConfigError:
    if name in FINAL_FLAGS:
        return ConfigError(f"{name} takes no value")
    for flag in flags:
        if flag.is_setting and name in (f"--{flag.key}", f"--no-{flag.key}"):
            return ConfigError(f"{name} is no flag but a setting: write {flag.key}=VALUE, or a line of a --config file")
        if flag.is_positional and name == f"--{flag.key}":
            return ConfigError(f"unknown flag {name}; write {flag.label} alone, without {name} before it")
    return ConfigError(f"unknown flag {name}{suggestion(name, (*switches, *FINAL_FLAGS)) or '; see --help'}")


def _named(flags: Sequence[Flag], word: str) -> Flag | None:
    """What `NAME=VALUE` sets: a setting, or a flag without its dashes; None for other words.

    Among free texts it is a setting or a text; elsewhere a name that nothing has is an error.
    """
    if not NAMED.match(word):
        return None
    name = word.partition("=")[0]
    takes_text = any(flag.is_free_text for flag in flags)
    known = [flag for flag in flags if not flag.is_positional and (flag.is_setting or not takes_text)]
    found = next((flag for flag in known if flag.key == name), None)
    if found is None and not takes_text:
        hint = suggestion(name, (flag.label for flag in known)) or "; see --help"
        raise ConfigError(f"unknown setting {name}{hint} (if it is no setting: -- {word})")
    return found


def _set(flag: Flag, so_far: tuple[Any, ...], text: str) -> Any:
    is_empty = not text and flag.empty is not MISSING
    return flag.empty if is_empty else _joined(flag, so_far, text)


def _is_mistakable(place: str) -> bool:
    """Whether a positional word looks like a flag, or like a setting."""
    return place.startswith("-") or bool(NAMED.match(place))


def _word(item: str) -> str:
    return item.lower() if item in ("True", "False") else item


def _next_value(name: str, remaining: Iterator[str], switches: Mapping[str, object]) -> str:
    """The word after a flag. Another flag there means that the value was forgotten."""
    text = next(remaining, None)
    if text is None:
        raise ConfigError(f"{name} needs a value after it")
    if text.partition("=")[0] in {*switches, *FINAL_FLAGS, "--"}:
        raise ConfigError(f"{name} needs a value before {text}; if that is the value, write {name}={text}")
    return text


def _joined(flag: Flag, so_far: tuple[Any, ...], text: str) -> Any:
    return (*so_far, flag.from_text(text)) if flag.is_many else flag.from_text(text)


def _placed(flags: Sequence[Flag], places: Sequence[str]) -> dict[str, Any]:
    """Words without a flag, given to the positional fields in order."""
    values: dict[str, Any] = {}
    remaining = list(places)
    for flag in flags:
        if flag.is_positional and remaining:
            taken = [remaining.pop(0) for _ in range(len(remaining) if flag.is_many else 1)]
            for text in taken:
                values[flag.name] = _joined(flag, values.get(flag.name, ()), text)
    if remaining:
        hint = suggestion(f"--{remaining[0]}", (f"--{flag.switch}" for flag in flags if not flag.is_positional))
        raise ConfigError(f"unexpected {remaining[0]!r}{hint or '; see --help'}")
    return values


def _built(config: type, base: Any, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(config)
    changes: dict[str, Any] = {}
    for declared in fields(config):
        hint = hints[declared.name]
        if isinstance(hint, type) and is_dataclass(hint):
            changes[declared.name] = _built(hint, default_of(declared, base), values)
        elif declared.name in values:
            changes[declared.name] = values[declared.name]
    return config(**changes) if base is MISSING else replace(base, **changes)
