"""`penstock bench`: load any OpenAI-compatible server and tell how it did, or why it cannot be told.

Puts the parts of `penstock.tools.bench` together; they are imported when the command runs.
"""

import asyncio
import json
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop

from penstock.cli.bench.config import Config, parse_slo
from penstock.cli.bench.progress import BenchProgress, LiveProgress
from penstock.cli.bench.report import print_report
from penstock.cli.bench.sweep import steps_of, table_of
from penstock.cli.bench.traffic import load_words, open_trace, plan_of, trial_s, warm_up_plan, workload_of
from penstock.console import config_file
from penstock.console.files import check_writable, write_file
from penstock.console.show import print_json, print_table
from penstock.service.upstream.endpoint import endpoint_of
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.target import find_target
from penstock.tools.bench.load import LoadShape
from penstock.tools.bench.machine import describe
from penstock.tools.bench.report.page import page_of
from penstock.tools.bench.report.report import report_of
from penstock.tools.bench.session import KneeGoal, Session

FAULT_STATUS = 1
INTERRUPTED_STATUS = 130


def run(config: Config) -> int:
    check_writable(None if str(config.json) == "-" else config.json, config.html)
    if config.load.sweep:
        return _sweep(config)
    with LiveProgress() as progress:
        return _report(config, measured(config, progress))


def _sweep(config: Config) -> int:
    reports: dict[int, dict[str, Any]] = {}
    for count, step in steps_of(config):
        with LiveProgress() as progress:
            reports[count] = measured(step, progress)
        if reports[count]["is_partial"]:
            break
    each = list(reports.values())
    return _deliver(
        config, {"sweep": config.load.sweep, "reports": each}, each, lambda: print_table(*table_of(reports))
    )


def _report(config: Config, report: dict[str, Any]) -> int:
    status = _deliver(config, report, [report], lambda: print_report(report))
    if status == FAULT_STATUS:
        print(f"penstock: {report['verdict']}: the figures say nothing of the server", file=sys.stderr)
    return status


def _deliver(config: Config, whole: dict[str, Any], reports: list[dict[str, Any]], show: Callable[[], None]) -> int:
    """Files first, so that nothing that goes wrong on a screen loses a measurement."""
    is_piped = str(config.json) == "-"
    if config.json is not None and not is_piped:
        write_file(config.json, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    if config.html is not None:
        write_file(config.html, page_of(reports))
    if is_piped:
        print_json(whole)
    else:
        show()
    if any(report["is_partial"] for report in reports):
        return INTERRUPTED_STATUS
    return 0 if all(report["verdict"] == "valid" for report in reports) else FAULT_STATUS


def measured(config: Config, progress: BenchProgress) -> dict[str, Any]:
    """The report of a benchmark, however it is told."""
    _allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_bench(config, progress))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _allow_connections() -> None:
    """As many open files as the system lets us have: running out of them would look like a failing server."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _bench(config: Config, progress: BenchProgress) -> dict[str, Any]:
    """SIGTERM ends it as Ctrl-C does: what was measured so far is told."""
    key = config.api_key or os.environ.get("PENSTOCK_API_KEY", "") or os.environ.get("OPENAI_API_KEY", "")
    client = Client(endpoint_of(config.url), key, verify=config.verify_tls)
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await _measure(config, client, progress)
    finally:
        client.close()
        await asyncio.sleep(0)  # the loop closes them on its next turn


async def _measure(config: Config, client: Client, progress: BenchProgress) -> dict[str, Any]:
    load = config.load
    trace = open_trace(config)
    nonce = config.words.nonce or secrets.token_hex(8)
    progress.say("asking the server what it is")
    target = await find_target(client, config.model, config.endpoint, nonce)
    goal = KneeGoal(parse_slo(config.target.slo), config.target.attainment)
    session = Session(client, target, _shape(config), goal, partial(plan_of, config, trace), progress.show)
    if load.warm_up:
        await session.warm_up(warm_up_plan(config, session))
    knee = None
    if config.target.find_knee:
        knee, runs = await session.find_knee(load.rate, trial_s(config))
    else:
        runs = []
        while len(runs) < load.repeats and not any(run.figures.is_interrupted or run.is_in_vain for run in runs):
            runs.append(await session.measure(f"run {len(runs) + 1}", load.rate))
    return report_of(
        runs,
        target=target,
        url=client.address.url,
        asked=_asked(config, nonce),
        load=load_words(config, trace),
        workload=workload_of(config, trace),
        client=describe(),
        knee=knee,
        with_rows=config.rows,
    )


def _shape(config: Config) -> LoadShape:
    load = config.load
    return LoadShape(
        users=config.num_users,
        duration_s=None if config.target.find_knee else load.duration_s,  # a trial has as many requests as come in it
        variation=config.words.variation,
        timeout_s=load.timeout_s,
        stops=load.stop_saturated,
    )


def _asked(config: Config, nonce: str) -> dict[str, Any]:
    """The config as JSON holds it, without the key."""
    asked = config_file.as_data(config)
    asked["api_key"] = "given" if config.api_key else ""
    asked["words"]["nonce"] = nonce
    return asked
