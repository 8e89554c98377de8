"""`penstock top`: a running server at a glance, renewed every second."""

import math
import sys
import time
from dataclasses import dataclass, field

from penstock.cli.fleet.reach import ask_server, check_address
from penstock.cli.fleet.watch import print_router, replica_data, router_figures
from penstock.console.show import print_json, print_table, printable
from penstock.fields import check, leaf
from penstock.metrics.page import Page, parse_page
from penstock.tools.doctor.page import Change
from penstock.tools.doctor.routing import RouterSigns, is_router, router_signs
from penstock.tools.doctor.signs import machine_signs


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
        if is_router(now):
            _show_router(config, router_signs(before, now, now_s - before_s))
        else:
            _show(config, figures(before, now, now_s - before_s))
        if config.once:
            return 0
        before, before_s = now, now_s


def read(config: Config) -> Page:
    page = ask_server(config.url, "/metrics", config.api_key, lambda *_: "; is --api-key right?")
    return parse_page(page.decode("utf-8", "replace"))


def figures(before: Page, now: Page, seconds: float) -> dict[str, float | None]:
    """What has happened between two looks, a second; and how things stand. None where nothing did, or nothing is said."""
    change = Change(before, now, seconds)
    drafts, accepted = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
    ttft, itl = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    found = {
        "running": change.gauge("vllm:num_requests_running"),
        "waiting": change.gauge("vllm:num_requests_waiting"),
        "kv_percent": 100 * change.gauge("vllm:kv_cache_usage_perc"),
        "prompt_tokens_per_s": change.rate("vllm:prompt_tokens_total"),
        "output_tokens_per_s": change.rate("vllm:generation_tokens_total"),
        "requests_per_s": change.rate("vllm:request_success_total"),
        "refused_per_s": change.rate("penstock_requests_refused_total"),
        "ttft_p50_ms": 1e3 * change.quantile(0.5, ttft),
        "ttft_p99_ms": 1e3 * change.quantile(0.99, ttft),
        "itl_p50_ms": 1e3 * change.quantile(0.5, itl),
        "itl_p99_ms": 1e3 * change.quantile(0.99, itl),
        "drafts_per_s": change.rate(drafts),
        "drafts_accepted_percent": 100 * change.ratio(accepted, drafts),
        "restarts": change.total("penstock_engine_restarts_total"),
        **_of_machine(before, now, seconds),
    }
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def _of_machine(before: Page, now: Page, seconds: float) -> dict[str, float]:
    """How far the machine is used, and what it took."""
    signs = machine_signs(before, now, seconds)
    return {
        "mfu_percent": 100 * signs["mfu"],
        "mbu_percent": 100 * signs["mbu"],
        "others_percent": 100 * signs["others_fraction"],
        "joules_per_token": signs["energy_per_token_j"],
        "joules_per_request": signs["energy_per_request_j"],
        "dollars_per_1k_requests": 1000 * signs["dollars_per_request"],
    }


def _show_router(config: Config, signs: RouterSigns) -> None:
    if config.json:
        print_json({"kind": "router"} | router_figures(signs) | {"replicas": replica_data(signs)})
        return
    _clear(config)
    print_router(f"{config.url}, a router", signs)
    sys.stdout.flush()


def _clear(config: Config) -> None:
    if sys.stdout.isatty() and not config.once:
        print("\x1b[H\x1b[2J", end="")


def _show(config: Config, row: dict[str, float | None]) -> None:
    rounded = {name: None if value is None else round(value, 1 if value >= 1.0 else 4) for name, value in row.items()}
    if config.json:
        print_json(rounded)
        return
    _clear(config)
    print_table(["", printable(config.url)], [(name.replace("_", " "), value) for name, value in rounded.items()])
    sys.stdout.flush()
