"""`penstock adapters`: the adapters of a running server, listed, loaded and unloaded."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.cli.fleet.reach import ask_server
from penstock.cli.serve import ADMIN_VARIABLE, KEY_VARIABLE
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError

TIMEOUT_S = 150.0


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
    url: str = "http://127.0.0.1:8000"
    """Address of the server"""
    api_key: str = ""
    """Admin key of the server, where it asks for keys; PENSTOCK_ADMIN_KEY holds one too"""
    reload: bool = False
    """Load anew what is served under the name already"""
    json: bool = False
    """Print JSON for machines"""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the address is {self.url}; it begins with http:// or https://")
        if self.action != "list" and not self.name:
            raise ConfigError(f"penstock adapters {self.action} takes the adapter's NAME")


def run(config: Config) -> int:
    if config.action == "load":
        body = {"lora_name": config.name, "lora_path": config.path or config.name, "load_inplace": config.reload}
        ask(config.url, config.api_key, "/v1/load_lora_adapter", body)
    elif config.action == "unload":
        ask(config.url, config.api_key, "/v1/unload_lora_adapter", {"lora_name": config.name})
    found: list[dict[str, Any]] = json.loads(ask(config.url, config.api_key, "/lora-adapters"))
    if config.json:
        print_json(found)
    else:
        rows = [
            (printable(one["name"]), "device" if one["is_resident"] else "-", one["num_open"], printable(one["path"]))
            for one in found
        ]
        print_table(("adapter", "lies on", "requests", "path"), rows)
    return 0


def ask(url: str, api_key: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """An admin's question to a running server."""
    key = api_key or os.environ.get(ADMIN_VARIABLE, "") or os.environ.get(KEY_VARIABLE, "")
    return ask_server(url, path, key, _message, body, TIMEOUT_S)


def _message(_: int, answer: bytes) -> str:
    try:
        return f": {json.loads(answer)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return ": no reason given"
