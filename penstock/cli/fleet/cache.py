"""`penstock doctor cache`: why prompts of a running server nearly hit its prefix cache, what it costs, and what to change."""

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.fleet.reach import admin_key, ask_server, check_address
from penstock.console.show import print_json, print_table, printable
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    """Say why prompts nearly hit a server's prefix cache.

    The server must watch for it (serve --watch-prefixes on). What is told are causes, positions and tokens, no text; with
    --watch-prefixes text the words that differed, too.
    """

    url: str = field(default="http://127.0.0.1:8000", metadata={"positional": True})
    """Address of the server"""
    api_key: str = ""
    """Admin key of the server, where it asks for keys; PENSTOCK_ADMIN_KEY holds one too"""
    json: bool = False
    """Print JSON for machines"""

    def __post_init__(self) -> None:
        check_address(self.url)


def run(config: Config) -> int:
    found = read(config)
    if config.json:
        print_json(found)
    else:
        for model, data in found.items():
            _print(model, data)
    return 1 if any(data and data["causes"] for data in found.values()) else 0


def read(config: Config) -> dict[str, Any]:
    try:
        found = json.loads(ask_server(config.url, "/app/v1/prefixes", admin_key(config.api_key), _way))
    except ValueError as error:
        raise ConfigError(f"{config.url} does not answer: {error}; is the server running?") from error
    if all(data is None for data in found.values()):
        raise ConfigError("this server does not watch prefixes; serve with --watch-prefixes on")
    return {str(model): data for model, data in found.items()}


def _way(status: int, _: bytes) -> str:
    return "; is this a server of this version?" if status == 404 else "; give its admin key with --api-key"


def _print(model: str, data: dict[str, Any] | None) -> None:
    if data is None:
        return
    total = data["num_tokens"] or 1
    share = 100.0 * data["num_cached"] / total
    print(f"{printable(model)}: {data['num_prompts']:,} prompts, {share:.1f} % of {data['num_tokens']:,} tokens cached")
    for reason, number in data.get("tiers", {}).items():
        print(f"tiers gave no more of {number:,} prompts: {printable(reason)}")
    if not data["causes"]:
        print("no prompt nearly hit the cache and missed it")
        return
    rows = []
    for one in data["causes"]:
        lost = one["num_lost"]
        rows.append((one["cause"], one["count"], f"{lost:,}", f"{100.0 * lost / total:.1f} %", one["first_position"]))
    print_table(("differs", "prompts", "tokens lost", "of all", "from token"), rows)
    for one in data["causes"]:
        print(f"\n{one['cause']}: {printable(one['remedy'])}")
        if one.get("own") or one.get("earlier"):
            print(f"    last seen: {printable(repr(one['own']))}, before it {printable(repr(one['earlier']))}")
