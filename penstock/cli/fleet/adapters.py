"""`penstock adapters`: the adapters of a running server, listed, loaded and unloaded."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.cli.fleet.reach import AdminConfig
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    """List, load or unload the adapters of a running server.

    The server was started with --adapter or --adapters-dir; adapters are loaded from the latter. Unloading waits until nobody
    uses the adapter any more.
    """

    action: Literal["list", "load", "unload"] = field(metadata={"positional": True})
    """What to do"""
    name: str = field(default="", metadata={"positional": True})
    """Name of the adapter: what requests have as their model"""
    path: str = ""
    """Where it lies in the server's --adapters-dir (default: under its name)"""
    reload: bool = False
    """Load anew what is served under the name already"""
    json: bool = False
    """Print JSON for machines"""
    server: AdminConfig = field(default_factory=AdminConfig)

    def __post_init__(self) -> None:
        if self.action != "list" and not self.name:
            raise ConfigError(f"penstock adapters {self.action} takes the adapter's NAME")


def run(config: Config) -> int:
    if config.action == "load":
        body = {"lora_name": config.name, "lora_path": config.path or config.name, "load_inplace": config.reload}
        config.server.ask("/v1/load_lora_adapter", body)
    elif config.action == "unload":
        config.server.ask("/v1/unload_lora_adapter", {"lora_name": config.name})
    found: list[dict[str, Any]] = json.loads(config.server.ask("/lora-adapters"))
    if config.json:
        print_json(found)
    else:
        rows = [
            (printable(one["name"]), "device" if one["is_resident"] else "-", one["num_open"], printable(one["path"]))
            for one in found
        ]
        print_table(("adapter", "lies on", "requests", "path"), rows)
    return 0
