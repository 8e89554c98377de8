"""`penstock top`: a running server at a glance, renewed every second."""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.cli.fleet.reach import ask_server, check_address
from penstock.cli.fleet.watch import print_router, replica_data, router_figures
from penstock.console.show import print_json, print_table, printable
from penstock.fields import check, leaf
from penstock.metrics.page import Page, parse_page
from penstock.tools.doctor.routing import is_router, router_signs
from penstock.tools.doctor.signs import Signs, page_signs


@dataclass(frozen=True, slots=True)
class Config:
    """Watch a running server or router: who runs, who waits, how fast tokens come."""

    url: str = field(default="http://127.0.0.1:8000", metadata={"positional": True})
    """Address of the server or router"""
    api_key: str = ""
    """Key the server asks for"""
    every_s: float = leaf(1.0, 0.05, 3600, unit="seconds")
    """Seconds between looks"""
    once: bool = False
    """Look twice, print one line of numbers, and end"""
    json: bool = False
    """Print numbers as JSON"""

    def __post_init__(self) -> None:
        check(self)
        check_address(self.url)


def run(config: Config) -> int:
    before, before_s = read(config), time.monotonic()
    while True:
        time.sleep(config.every_s)
        now, now_s = read(config), time.monotonic()
        _show(config, before, now, now_s - before_s)
        if config.once:
            return 0
        before, before_s = now, now_s


def read(config: Config) -> Page:
    page = ask_server(config.url, "/metrics", config.api_key, lambda *_: "; is --api-key right?")
    return parse_page(page.decode("utf-8", "replace"))


FIGURES: Mapping[str, tuple[str, float]] = {
    "running": ("num_running", 1),
    "waiting": ("num_waiting", 1),
    "kv_percent": ("kv_usage_fraction", 100),
    "prompt_tokens_per_s": ("prompt_tokens_per_s", 1),
    "output_tokens_per_s": ("output_tokens_per_s", 1),
    "requests_per_s": ("ended_per_s", 1),
    "refused_per_s": ("refused_per_s", 1),
    "ttft_p50_ms": ("ttft_p50_s", 1000),
    "ttft_p99_ms": ("ttft_p99_s", 1000),
    "itl_p50_ms": ("itl_p50_s", 1000),
    "itl_p99_ms": ("itl_p99_s", 1000),
    "drafts_per_s": ("drafts_per_s", 1),
    "drafts_accepted_percent": ("accepted_fraction", 100),
    "restarts": ("num_restarts", 1),
    "mfu_percent": ("mfu", 100),
    "mbu_percent": ("mbu", 100),
    "others_percent": ("others_fraction", 100),
    "joules_per_token": ("energy_per_token_j", 1),
    "joules_per_request": ("energy_per_request_j", 1),
    "dollars_per_1k_requests": ("dollars_per_request", 1000),
}
"""What is shown of the doctor's signs, and in which unit."""


def figures(signs: Signs) -> dict[str, Any]:
    """What has happened between two looks, a second; and how things stand. None where nothing did, or nothing is said."""
    found = {name: scale * float(getattr(signs, sign)) for name, (sign, scale) in FIGURES.items()}
    return {
        name: None if math.isnan(value) else round(value, 1 if value >= 1.0 else 4) for name, value in found.items()
    }


def _show(config: Config, before: Page, now: Page, seconds: float) -> None:
    if is_router(now):
        routed = router_signs(before, now, seconds)
        found = {"kind": "router", **router_figures(routed), "replicas": replica_data(routed)}
        show = partial(print_router, f"{config.url}, a router", routed)
    else:
        found = figures(page_signs(before, now, seconds))
        rows = [(name.replace("_", " "), value) for name, value in found.items()]
        show = partial(print_table, ("", printable(config.url)), rows)
    if config.json:
        print_json(found)
        return
    if sys.stdout.isatty() and not config.once:
        print("\x1b[H\x1b[2J", end="")
    show()
    sys.stdout.flush()
