"""`penstock status`: what a service on a Ray cluster is made of now."""

import json
from dataclasses import dataclass
from typing import Any

from penstock.cli.fleet.up import stay_on_loopback
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    """Show what `penstock up` has placed: replicas, nodes, load, how long starts took and what was spent on them."""

    address: str = "auto"
    """Ray cluster to look at: HOST:PORT, or auto for the one this machine belongs to"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    stay_on_loopback(config.address)
    try:
        from penstock.service.cluster.place import look
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("penstock status asks Ray; pip install 'penstock[cluster]'") from error
    state = look(config.address)
    print(json.dumps(state) if config.json else "\n".join(lines(state)))
    return 0


def lines(state: dict[str, Any]) -> list[str]:
    found = [
        f"{state['url']}   {state['num_nodes']} nodes   {state['num_pending']} requests pending, "
        f"{state['num_waiting']} of them without a replica",
        "",
        f"{'replica':<14}{'state':<11}{'node':<18}{'pending':>8}{'start':>9}   spent on",
    ]
    for replica in state["replicas"]:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in replica["parts"])
        found.append(
            f"{replica['name']:<14}{replica['phase']:<11}{replica['node']:<18}{replica['num_pending']:>8}"
            f"{replica['start_s']:>7.1f} s   {parts}"
        )
    if not state["replicas"]:
        found.append("none: the next request starts one")
    return [*found, "", *state["events"]]
