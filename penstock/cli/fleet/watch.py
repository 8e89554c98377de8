"""A router's signs laid out for people and for machines: what `doctor` and `top` show where the address is a router's."""

import math
from dataclasses import asdict
from typing import Any

from penstock.console.show import print_table, printable
from penstock.tools.doctor.routing import RouterSigns

INSIDE = (
    "a router has no engine: what happens inside a replica penstock doctor and penstock top tell at its own address"
)
COLUMNS = ("replica", "state", "pending", "waiting", "KV, %", "sent/s", "share, %", "failed/s")


def router_figures(signs: RouterSigns) -> dict[str, Any]:
    """The router's own numbers; None where nothing happened, never a zero that nobody measured."""
    found = {
        "policy": signs.policy or None,
        "replicas_ready": f"{len(signs.ready)} of {len(signs.replicas)}",
        "open": signs.num_open,
        "parked": signs.num_parked,
        "requests_per_s": signs.num_ended / signs.window_s,
        "output_tokens_per_s": signs.tokens_per_s,
        "refused_per_s": signs.num_refused / signs.window_s,
        "retries_per_s": signs.num_retries / signs.window_s,
        "failovers_per_s": signs.num_failovers / signs.window_s,
        "first_byte_p50_ms": 1e3 * signs.first_byte_p50_s,
        "first_byte_p99_ms": 1e3 * signs.first_byte_p99_s,
        "overhead_p99_ms": 1e3 * signs.overhead_p99_s,
    }
    return {name: _known(value) for name, value in found.items()}


def replica_data(signs: RouterSigns) -> list[dict[str, Any]]:
    return [
        {name: _known(value) for name, value in asdict(one).items()} | {"share": _known(signs.share(one))}
        for one in signs.replicas
    ]


def print_router(title: str, signs: RouterSigns) -> None:
    figures = [(name.replace("_", " "), value) for name, value in router_figures(signs).items() if value is not None]
    print_table(("", printable(title)), figures)
    rows = [
        (
            printable(one.name),
            "left alone" if one.is_breaker_open else "ready" if one.is_ready else "not ready",
            _known(one.num_pending),
            _known(one.num_waiting),
            _known(100.0 * one.kv_usage_fraction),
            one.num_sent / signs.window_s,
            _known(100.0 * signs.share(one)),
            one.num_failed / signs.window_s,
        )
        for one in signs.replicas
    ]
    print()
    print_table(COLUMNS, rows)
    print(f"\n{INSIDE}")


def _known(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 2)
