"""`penstock bench --sweep 1,2,4,8`: the same load with more and more users, one report each, and all of them as one table."""

from dataclasses import replace
from typing import Any

from penstock.cli.bench.config import Config
from penstock.errors import ConfigError

FIRST = ("output_tokens_per_s", "requests_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
"""Figures of the table; those that a report does not have are left out."""


def users_of(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= 1_000_000 for count in counts):
        raise ConfigError(f"--sweep is {text!r}; write numbers of users with commas between, such as 1,2,4,8")
    return counts


def steps_of(config: Config) -> list[tuple[int, Config]]:
    """A benchmark for each number of users; files are written of the whole sweep alone."""
    load = replace(config.load, sweep="")
    return [
        (count, replace(config, load=replace(load, concurrency=count), json=None, html=None))
        for count in users_of(config.load.sweep)
    ]


def table_of(reports: dict[int, dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    known = {name for report in reports.values() for name in report["headlines"]}
    names = [name for name in FIRST if name in known]
    rows: list[tuple[object, ...]] = []
    before: float | None = None
    for count, report in reports.items():
        found = {name: report["headlines"].get(name, {}).get("mean") for name in names}
        now = found.get("output_tokens_per_s")
        gain = f"{100 * (now / before - 1):+.0f} %" if now and before else None
        rows.append((count, *found.values(), gain, report["verdict"]))
        before = now
    return ("users", *(name.replace("_", " ") for name in names), "more tokens/s", "verdict"), rows
