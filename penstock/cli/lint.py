"""`penstock lint CONFIG`: the common mistakes of a deployment's settings, read from the file that serve and simulate read."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cli.bench.config import parse_slo
from penstock.cli.main import COMMANDS
from penstock.console import config_file
from penstock.console.flags import flags_of, suggestion
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError
from penstock.tools.advise.lint import LintFinding, Setup, lint, setup_of
from penstock.tools.workload import lengths

FOUND_STATUS = 1
READERS = ("serve", "simulate", "plan", "bench", "route", "up")
"""Commands whose files are examined."""


@dataclass(frozen=True, slots=True)
class Config:
    """Find common mistakes in a deployment's settings.

    The file is one that serve, simulate, plan, bench, route or up reads (TOML or JSON). It may also tell what those do not
    read: context_p99, readiness, liveness_s, load_s, max_tokens, client_timeout_s, e2e_p99_s and so on. A key that nothing
    reads is a mistake too. Exit status 1: something was found.
    """

    file: Path = field(metadata={"positional": True, "metavar": "CONFIG"})
    """Config file to examine"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    values = read(config.file)
    findings = [*unknown_keys(values), *lint(read_setup(values))]
    if config.json:
        known = {one.name for one in fields(Setup)}
        ignored = sorted(set(values) - known)
        print_json({"file": str(config.file), "findings": [asdict(one) for one in findings], "not_examined": ignored})
    elif findings:
        print_table(("setting", "found", "remedy"), [(one.setting, one.found, one.remedy) for one in findings])
    else:
        print(f"{config.file}: none of the common mistakes")
    return FOUND_STATUS if findings else 0


def read(path: Path) -> dict[str, Any]:
    """Every leaf of the file by its name, in whatever table it lies."""
    return dict(_leaves(config_file.load(str(path))))


def unknown_keys(values: Mapping[str, Any]) -> list[LintFinding]:
    """Keys that no command reads and no rule looks at: most likely misspelt, so that a default holds instead."""
    configs = [import_module(COMMANDS[name].module).Config for name in READERS]
    known = {flag.name for config in configs for flag in flags_of(config)} | {one.name for one in fields(Setup)}
    hint = [name.replace("_", "-") for name in sorted(known)]
    found = []
    for key in (name.replace("_", "-") for name in values if name not in known):
        remedy = suggestion(key, hint).removeprefix("; ") or f"see the --help of {', '.join(READERS)}"
        found.append(LintFinding("unknown-key", key, "no command reads this key", remedy))
    return found


def _leaves(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield key.replace("-", "_"), value


def read_setup(values: Mapping[str, Any]) -> Setup:
    """What the rules look at; an SLO in words and lengths as distributions are read here."""
    known = dict(values)
    if isinstance(known.get("slo"), str):
        slo = parse_slo(known["slo"])
        known = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s} | known
    kinds = [lengths.parse(str(known[name])) for name in ("prompts", "answers") if known.get(name)]
    if kinds and "lengths" not in known:
        known["lengths"] = "even" if all(isinstance(kind, lengths.Fixed) for kind in kinds) else "mixed"
    if "replicas" in known and known.get("scale_to") and "scale_from" not in known:
        known["scale_from"] = known["replicas"]
    known |= _drafts(known)
    _check_types(known)
    return setup_of(known)


def _drafts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Drafts of every step: `draft-tokens` of serve unless it is off, or simulate's `speculate` where it is a number."""
    asked = known.get("speculate")
    if asked == "off":
        return {"draft_tokens": None, "acceptance": None}
    is_number = isinstance(asked, int) or (isinstance(asked, str) and asked.isdecimal())
    return {"draft_tokens": int(str(asked))} if is_number else {}


def _check_types(known: Mapping[str, Any]) -> None:
    """A number where a number belongs: the rules compare."""
    from typing import get_type_hints

    for name, hint in get_type_hints(Setup).items():
        value = known.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and ("float" in str(hint) or "int |" in str(hint)) and not is_number:
            raise ConfigError(f"{name} is {value!r}; it takes a number")
