"""`penstock cache`: sessions in the KV cache of a running server, and where their tokens lie."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.cli.fleet.reach import AdminConfig
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError

PATH = "/cache/sessions"


@dataclass(frozen=True, slots=True)
class Config:
    """List, pin, drop, export or import sessions of a server's KV cache.

    A session is what requests name with prompt_cache_key or a conversation. The server was started with --kv-host or
    --kv-disk; exports are files in the latter's folder, and imports are read from there.
    """

    action: Literal["list", "pin", "drop", "export", "import"] = field(metadata={"positional": True})
    """What to do"""
    name: str = field(default="", metadata={"positional": True})
    """Name of the session, or TENANT/NAME; of the file in exports/ for an import"""
    seconds: float = 600.0
    """How long a pin keeps a session's blocks on the device"""
    json: bool = False
    """Print JSON for machines"""
    server: AdminConfig = field(default_factory=AdminConfig)

    def __post_init__(self) -> None:
        if self.action != "list" and not self.name:
            raise ConfigError(f"penstock cache {self.action} takes the session's NAME")


def run(config: Config) -> int:
    body = {"action": config.action, "session": config.name, "seconds": config.seconds}
    found: dict[str, Any] = json.loads(config.server.ask(PATH, None if config.action == "list" else body))
    if config.action == "import":
        found = json.loads(config.server.ask(PATH))
    if config.json:
        print_json(found)
    elif "file" in found:
        print(printable(found["file"]))
    else:
        columns = ("name", "tenant", "num_tokens", "device", "host", "disk", "idle_s")
        rows = [tuple(printable(str(one[column])) for column in columns) for one in found["sessions"]]
        print_table(("session", "tenant", "tokens", "on device", "host", "disk", "idle s"), rows)
    return 0
