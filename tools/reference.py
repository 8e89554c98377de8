"""Writes the reference pages of the documentation out of the code: flags, routes, metrics, errors.

    python -m tools.reference [FOLDER]      (default: docs/reference, which git ignores; `make docs` runs it)

Nothing is written by hand there, so nothing can be out of date.
"""

import dataclasses
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from penstock.cli.main import COMMANDS
from penstock.config import EngineConfig
from penstock.console.help import command_help
from penstock.runtime.engine.client import EngineClient
from penstock.service.config import ServerConfig
from penstock.service.router.fleet import LiveFleet
from penstock.service.router.meters import RouterMeters
from penstock.service.server.app import ROUTES
from penstock.service.server.http.admission import Admission
from penstock.service.server.http.faults import ErrorKind
from penstock.service.server.telemetry.meters import Meters


def flags() -> str:
    """Every command with its flags, as `--help` shows them."""
    parts = ["# Commands and flags\n"]
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        parts.append(
            f"## penstock {name}\n\n{command.help}.\n\n```text\n{command_help(f'penstock {name}', module.Config, 100)}\n```\n"
        )
    return "\n".join(parts)


def routes() -> str:
    rows = ["# Routes\n", "| method | path | what | also as |", "|---|---|---|---|"]
    for route in ROUTES:
        rows.append(
            f"| {route.method} | `{route.path}` | {route.help} | {' '.join(f'`{one}`' for one in route.aliases)} |"
        )
    return "\n".join(rows) + "\n"


def metrics() -> str:
    """Metrics of a server, then of a router, by what their own pages say of themselves."""
    client = EngineClient([], EngineConfig())
    meters = Meters(client, Admission(client, num_tenants=0))
    served = [(metric.name, metric.help) for metric in meters.metrics]
    page = RouterMeters(LiveFleet(), "auto", lambda: 0, lambda: 0).render([])
    routed = [(name, help) for name, help in re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE)]
    parts = ["# Metrics\n", "Served on `/metrics` for Prometheus.\n"]
    for title, found in (("Server", served), ("Router", routed)):
        rows = sorted(f"| `{name}` | {help} |" for name, help in found)
        parts.append("\n".join([f"## {title}\n", "| name | what |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def errors() -> str:
    rows = ["# Errors\n", "Every error names the fault and the way out, in the shape of the dialect that was asked.\n"]
    rows += ["| kind | HTTP status |", "|---|---|", *(f"| {kind.value} | {kind.status} |" for kind in ErrorKind)]
    return "\n".join(rows) + "\n"


def settings() -> str:
    """The fields of config files, group by group."""
    parts = ["# Settings\n", "Every flag can stand in a TOML or JSON file given with `--config`.\n"]
    groups: list[Any] = [*(field.default_factory for field in dataclasses.fields(EngineConfig)), ServerConfig]
    for group in groups:
        rows = [f"| `{field.name}` | `{getattr(group(), field.name)!r}` |" for field in dataclasses.fields(group)]
        parts.append("\n".join([f"## {group.__name__}\n", "| setting | default |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


PAGES = {"flags": flags, "routes": routes, "metrics": metrics, "errors": errors, "settings": settings}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / f"{name}.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/reference"))
