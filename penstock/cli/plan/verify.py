"""`penstock plan verify`: a short benchmark of a live server beside what the plan's simulation says of the same requests.

The load is one replica's share of the plan's, drawn from the same seed on both sides.
"""

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import top
from penstock.cli.bench import config as bench
from penstock.cli.plan.config import Config as PlanConfig
from penstock.cli.plan.model import describe
from penstock.console import args, config_file
from penstock.console.files import read_object
from penstock.console.show import cell, print_json, print_table
from penstock.errors import ConfigError
from penstock.fields import Checked, leaf, setting
from penstock.metrics.page import Page
from penstock.metrics.summary import Summary
from penstock.runtime.core.batch import Batch
from penstock.tools.cost.cost import decode_chunks
from penstock.tools.doctor.page import Change, share
from penstock.tools.doctor.signs import page_signs
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.verify.cause import LOST, LiveEvidence, cause_of
from penstock.tools.planner.verify.check import SHARES, TIMES, check
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.asked import Asked

if TYPE_CHECKING:  # numpy, which the flags need not
    from penstock.tools.planner.demand import Demand
    from penstock.tools.workload.trace import Trace

PLAIN_LABELS = {"output_tokens_per_s": "output tokens/s", "good_fraction": "good, % of requests"}
OUTSIDE_STATUS = 1


@dataclass(frozen=True, slots=True)
class Config(Checked):
    """Measure a live server and compare it with what a plan predicts of the same load.

    Sends one replica's share of the plan's load, and ends with status 0 if times and throughput lie within the tolerance, 1 if
    not.
    """

    url: str = field(default="http://127.0.0.1:8000", metadata={"positional": True})
    """Address of the server"""
    plan: Path | None = None
    """The plan, as penstock plan --emit wrote it (plan.toml or plan.json)"""
    rate: float | None = leaf(None, above=0, most=1e6)
    """Requests a second to send (default: the plan's, divided by its replicas)"""
    num_requests: int = leaf(100, 10, 100_000)
    """How many requests to send"""
    tolerance: float = setting(0.1)
    """Largest error that counts as proved: 0.1 is 10 %"""
    api_key: str = ""
    """Key the server asks for (default: PENSTOCK_API_KEY or OPENAI_API_KEY)"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    if config.plan is None:
        raise ConfigError(
            "no plan was given; make one with penstock plan MODEL --emit plan.toml and name it with --plan"
        )
    from penstock.cli.plan.command import demand_of

    data = read_plan(config.plan)
    asked = config_of(data)
    demand = demand_of(asked.load, asked.goal)
    rate = config.rate or float(data["demand"]["rate"]) / max(int(data["chosen"]["num_replicas"]), 1)
    before, before_s = _page(config), time.monotonic()
    report = measure(config, asked, demand, rate)
    after, seconds = _page(config), time.monotonic() - before_s
    candidate = candidate_of(data, asked, demand)
    summaries = predict(candidate, asked, demand, rate, config.num_requests)
    moments = [figures(asdict(summary)) for summary in summaries]
    outcome = check(moments, figures(report["runs"][0]["summary"]), config.tolerance, _model_error(asked))
    shown = ("predicted", "interval", "measured", "error")
    rows = [
        {"figure": row.name, "predicted_range": row.range} | {name: getattr(row, name) for name in shown}
        for row in outcome.rows
    ]
    is_valid = report["verdict"] == "valid"
    evidence = _evidence(before, after, seconds, summaries[0], candidate)
    cause, remedy = cause_of(evidence, is_profiled=asked.space.profile is not None)
    reported = {
        "rate": rate,
        "num_requests": config.num_requests,
        "verdict": report["verdict"],
        "tolerance": config.tolerance,
        "is_within": outcome.is_within and is_valid,
        "is_profiled": asked.space.profile is not None,
        "rows": rows,
        "cause": "" if outcome.is_within else cause,
        "remedy": "" if outcome.is_within else remedy,
    }
    if config.json:
        print_json(reported)
    else:
        print_verdict(reported, outcome.worst.name)
    return 0 if reported["is_within"] else OUTSIDE_STATUS


def _model_error(asked: PlanConfig) -> float:
    """Of the profile's step times on steps not fitted; none is known of a device's figures."""
    if asked.space.profile is None:
        return 0.0
    from penstock.tools.measure.profiles import open_profile

    return open_profile(asked.space.profile).fitted.errors["all"].median


def _page(config: Config) -> Page:
    """The server's own numbers; none where it does not tell them."""
    try:
        return top.read(top.Config(url=config.url, api_key=config.api_key))
    except ConfigError:
        return {}


def _evidence(before: Page, after: Page, seconds: float, predicted: Summary, candidate: Candidate) -> LiveEvidence:
    """What the server says of the time it was measured, beside what was predicted for it."""
    change, signs = Change(before, after, seconds), page_signs(before, after, seconds)
    terms = {one.labels.get("term", ""): one.value for one in after.get("penstock_step_seconds", ())}
    step_ratio = math.nan
    if terms:
        size = max(round(change.ratio("vllm:generation_tokens_total", "penstock_engine_steps_total")), 1)
        context = max(round(predicted.num_prompt_tokens / max(predicted.num_requests, 1)), 1)
        live = terms["base"] + terms["sequence"] * size + terms["kv_token"] * size * context
        batch = Batch(0, tuple(decode_chunks(size, context)))
        step_ratio = share(live, candidate.step_cost.step_s(batch))
    return LiveEvidence(
        {name: getattr(signs, name) for name in LOST},
        step_ratio,
        change.gauge("penstock_step_model_error"),
        signs.hit_fraction,
        share(predicted.num_cached_tokens, predicted.num_prompt_tokens),
        1.0 + change.ratio("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total"),
    )


def read_plan(path: Path) -> dict[str, Any]:
    path = path.with_suffix(".json")
    data = read_object(path, "plan", "make one with penstock plan --emit")
    if data.get("penstock_plan") != 1 or not isinstance(data.get("chosen"), dict):
        raise ConfigError(f"{path} is no plan that chose something; make one with penstock plan --emit")
    return data


def config_of(data: Mapping[str, Any]) -> PlanConfig:
    """What the plan was asked, checked as if it came from a command line."""
    try:
        config = args.build(PlanConfig, config_file.values_in(PlanConfig, data["asked"], "the plan"))
        if config_file.as_data(config) != data["asked"]:
            raise KeyError("a part is missing")
        return config
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the plan's own question cannot be read ({error}); make the plan again") from error


def measure(config: Config, asked: PlanConfig, demand: "Demand", rate: float) -> dict[str, Any]:
    """The report of a short benchmark; what it prints goes to the error stream."""
    from penstock.cli.bench.command import measured
    from penstock.cli.bench.progress import LiveProgress
    from penstock.cli.bench.report import print_report
    from penstock.cli.plan.command import filled

    load = filled(asked.load)
    if demand.trace is not None:
        recording = bench.ReplayedTrace(trace=load.trace, trace_speed=_trace_speed(demand.trace, rate))
        arrivals = bench.BenchLoad(num_requests=config.num_requests)
    else:
        recording = bench.ReplayedTrace()
        num_requests = demand.num_conversations(config.num_requests)
        arrivals = bench.BenchLoad(rate=rate / demand.num_turns, num_requests=num_requests)
    words = bench.PromptLengths(**{one.name: getattr(load, one.name) for one in fields(Asked)})
    target = bench.BenchTarget(slo=asked.goal.slo, attainment=asked.goal.attainment)
    sent = bench.Config(
        url=config.url, api_key=config.api_key, load=arrivals, recording=recording, words=words, target=target
    )
    with LiveProgress() as progress:
        report = measured(sent, progress)
    with contextlib.redirect_stdout(sys.stderr):
        print_report(report)
    if report["is_partial"]:
        raise KeyboardInterrupt
    return report


def _trace_speed(trace: "Trace", rate: float) -> float:
    return rate / (len(trace) / trace.span_s) if trace.span_s else 1.0


def candidate_of(data: Mapping[str, Any], asked: PlanConfig, demand: "Demand") -> Candidate:
    """The candidate that the plan chose, made anew."""
    from penstock.cli.plan.command import PlanProgress, explore, search_of

    found, _ = explore(asked, describe(asked.model), demand, search_of(asked, PlanProgress()))
    chosen = data["chosen"]
    for one in found:
        candidate = one.candidate
        if (candidate.name, candidate.hardware.name) == (chosen["name"], chosen["hardware"]):
            return candidate.with_limits(int(chosen["max_sequences"]), int(chosen["max_batch_tokens"]))
    raise ConfigError(f"the plan chose {chosen['name']}, which does not fit any more; make the plan again")


def predict(candidate: Candidate, asked: PlanConfig, demand: "Demand", rate: float, num_requests: int) -> list[Summary]:
    """Exactly the requests that were sent, at the times they were due; for some moments of a machine that has slow ones."""
    vocab_size, slo = candidate.spec.vocab_size, bench.parse_slo(asked.goal.slo)
    if demand.trace is None:
        workload = demand.workload(rate, num_requests, vocab_size)
    else:
        workload = demand.trace.first(num_requests).faster(_trace_speed(demand.trace, rate)).workload(vocab_size)
    return [simulate(fleet, workload, slo).summary for fleet in candidate.fleet(candidate.num_copies).moments]


def figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Of a summary as a report has it."""
    found = {f"{name}_{share}": summary[name][share] for name in TIMES for share in SHARES}
    return found | {name: summary[name] for name in PLAIN_LABELS}


def print_verdict(reported: Mapping[str, Any], worst: str) -> None:
    rows = []
    for row in reported["rows"]:
        name, is_time = row["figure"], row["figure"].rpartition("_")[0] in ("ttft", "tpot", "e2e")
        scale = 1e3 if is_time else 100.0 if name == "good_fraction" else 1.0
        label = name.replace("_", " ").upper().replace(" P", " p") + ", ms" if is_time else PLAIN_LABELS[name]
        error = "none measured" if row["error"] is None else f"{100 * row['error']:+.1f} %"
        low, high = row["interval"]
        between = f"{cell(scale * low)} to {cell(scale * high)}" if low < high else ""
        rows.append((label, scale * row["predicted"], between, scale * row["measured"], error))
    is_time_varying = any(row[2] for row in rows)
    columns = (f"at {reported['rate']:.3g} requests/s", "predicted", "nine times in ten", "measured", "error")
    shown = [number for number in range(len(columns)) if is_time_varying or number != 2]
    print_table([columns[number] for number in shown], [[row[number] for number in shown] for row in rows])
    if reported["verdict"] != "valid":
        print(f"\nNot judged: the benchmark itself says {reported['verdict']}")
    elif reported["is_within"]:
        near = f"within {100 * reported['tolerance']:g} % of what is predicted"
        print(
            f"\nProved: every time and the throughput lie {near}{' for one moment or another' if is_time_varying else ''}"
        )
    else:
        print(
            f"\nNot proved: {worst.replace('_', ' ')} is off by more than {100 * reported['tolerance']:g} %; ", end=""
        )
        print(f"the cause: {reported['cause']}\n{reported['remedy']}")
