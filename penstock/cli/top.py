"""`penstock top`: a running server at a glance, renewed every second."""

import math
import sys
import time
from dataclasses import dataclass, field

from penstock.cli.fleet.reach import ask_server, check_address
from penstock.cli.fleet.watch import print_router, replica_data, router_figures
from penstock.console.show import print_json, print_table, printable
from penstock.fields import check, leaf
from penstock.metrics.page import Page, parse_page, sum_of
from penstock.tools.doctor.machine import machine_signs
from penstock.tools.doctor.routing import RouterSigns, is_router, router_signs


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
    """What has happened between two looks, a second; and how things stand."""

    def rate(name: str) -> float | None:
        after = sum_of(now, name)
        return None if after is None else (after - (sum_of(before, name) or 0.0)) / seconds

    return {
        "running": sum_of(now, "vllm:num_requests_running"),
        "waiting": sum_of(now, "vllm:num_requests_waiting"),
        "kv_percent": _percent(sum_of(now, "vllm:kv_cache_usage_perc"), 1.0),
        "prompt_tokens_per_s": rate("vllm:prompt_tokens_total"),
        "output_tokens_per_s": rate("vllm:generation_tokens_total"),
        "requests_per_s": rate("vllm:request_success_total"),
        "refused_per_s": rate("penstock_requests_refused_total"),
        "ttft_p50_ms": _quantile(before, now, "vllm:time_to_first_token_seconds", 0.5),
        "ttft_p99_ms": _quantile(before, now, "vllm:time_to_first_token_seconds", 0.99),
        "itl_p50_ms": _quantile(before, now, "vllm:inter_token_latency_seconds", 0.5),
        "itl_p99_ms": _quantile(before, now, "vllm:inter_token_latency_seconds", 0.99),
        "drafts_per_s": rate("vllm:spec_decode_num_draft_tokens_total"),
        "drafts_accepted_percent": _percent(
            rate("vllm:spec_decode_num_accepted_tokens_total"), rate("vllm:spec_decode_num_draft_tokens_total")
        ),
        "restarts": sum_of(now, "penstock_engine_restarts_total"),
        **_of_machine(before, now, seconds),
    }


def _of_machine(before: Page, now: Page, seconds: float) -> dict[str, float | None]:
    """How far the machine is used, and what it took; None where the server does not say."""
    signs = machine_signs(before, now, seconds)
    rows = {
        "mfu_percent": ("mfu", 100.0),
        "mbu_percent": ("mbu", 100.0),
        "others_percent": ("others_fraction", 100.0),
        "joules_per_token": ("energy_per_token_j", 1.0),
        "joules_per_request": ("energy_per_request_j", 1.0),
        "dollars_per_1k_requests": ("dollars_per_request", 1000.0),
    }
    return {name: None if math.isnan(signs[sign]) else scale * signs[sign] for name, (sign, scale) in rows.items()}


def _percent(part: float | None, whole: float | None) -> float | None:
    return 100 * part / whole if whole and part is not None else None


def _quantile(before: Page, now: Page, name: str, fraction: float) -> float | None:
    """The bucket's upper bound, in milliseconds; None if nothing happened."""
    found: dict[float, float] = {}
    for page, sign in ((now, 1.0), (before, -1.0)):
        for sample in page.get(f"{name}_bucket", ()):
            bound = float(sample.labels.get("le", "inf"))
            found[bound] = found.get(bound, 0.0) + sign * sample.value
    buckets = sorted(found.items())
    if not buckets or not buckets[-1][1]:
        return None
    wanted = fraction * buckets[-1][1]
    return next(bound for bound, count in buckets if count >= wanted) * 1000


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
