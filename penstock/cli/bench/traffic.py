"""What a command line of `penstock bench` asks to be sent: its flags as arrivals, lengths and conversations."""

import math
from dataclasses import asdict, replace
from typing import Any

from penstock.amounts import counted
from penstock.cli.bench.config import Config
from penstock.tools.bench.machine import trace_digest
from penstock.tools.bench.plan import TrafficPlan, plan_of_recipe, plan_of_trace
from penstock.tools.bench.session import Session
from penstock.tools.workload.arrivals import RateRamp
from penstock.tools.workload.trace import Trace
from penstock.tools.workload.trace_files import read
from penstock.tools.workload.workload import Recipe

DEFAULT_REQUESTS = 100
SPREAD_WORDS = {0.0: "constant", 1.0: "poisson"}
KNEE_TRIAL_S = 30.0
KNEE_REQUESTS = 50
"""As many as a trial should have, if that takes no more than three times as long as it should; but never under 20."""


def open_trace(config: Config) -> Trace | None:
    recording = config.recording
    if recording.trace is None:
        return None
    trace = read(recording.trace)
    end_s = math.inf if recording.trace_to_s is None else recording.trace_to_s
    if recording.trace_from_s or end_s < math.inf:
        trace = trace.window(recording.trace_from_s, end_s)
    if config.load.num_requests is not None:
        trace = trace.first(config.load.num_requests)
    return trace.faster(recording.trace_speed)


def plan_of(config: Config, trace: Trace | None, name: str, rate: float | None) -> TrafficPlan:
    if trace is not None:
        return plan_of_trace(trace, f"{name} ")
    return plan_of_recipe(recipe_of(config, rate), config.words.seed, f"{name} ")


def recipe_of(config: Config, rate: float | None) -> Recipe:
    words = config.words
    recipe = words.recipe_at(rate or 0.0, _num_requests(config, rate), prefix=words.prefix(words.num_prefixes))
    if rate is not None and config.load.ramp_to is not None:
        return replace(recipe, arrivals=RateRamp(rate, config.load.ramp_to))
    return recipe


def _num_requests(config: Config, rate: float | None) -> int:
    """As many as were asked for, or as come within the time asked for, and a few more for chance."""
    load = config.load
    if load.num_requests is not None:
        return load.num_requests
    if config.target.find_knee and rate is not None:
        count = math.ceil(rate * trial_s(config))
        return max(count, min(KNEE_REQUESTS, max(3 * count, 20)))
    if load.duration_s is not None and rate is not None:
        expected = max(rate, load.ramp_to or 0.0) * load.duration_s
        return math.ceil(expected + 4.0 * math.sqrt(expected) * max(config.words.variation, 1.0) + 1.0)
    return max(DEFAULT_REQUESTS, 4 * (config.num_users or 0))


def trial_s(config: Config) -> float:
    return config.load.duration_s or KNEE_TRIAL_S


def warm_up_plan(config: Config, session: Session) -> TrafficPlan:
    """The first requests of a run, with other words."""
    plan = session.make_plan("warm up", config.load.rate)
    asks = [replace(ask, arrival_s=0.0) for ask in plan.asks[: config.load.warm_up]]
    return TrafficPlan(tuple(asks))


def load_words(config: Config, trace: Trace | None) -> str:
    """What is sent, as one says it."""
    load, words = config.load, config.words
    if trace is not None:
        left_out = f"; {trace.num_unanswered:,} without an answer left out" if trace.num_unanswered else ""
        return f"{config.recording.trace}: {counted(len(trace), 'request')} in {trace.span_s:,.1f} s{left_out}"
    if config.target.find_knee:
        when = f"rising rates, {trial_s(config):g} s each"
    else:
        what = "conversation" if words.turns > 1 else "request"
        when = f"{counted(_num_requests(config, load.rate), what)} {_pace(config)}"
        when += f", for {load.duration_s:g} s at most" if load.duration_s is not None else ""
    parts = [when, f"prompts of {words.prompts} tokens", f"answers of {words.answers}"]
    if words.shared_prefix:
        parts.insert(1, f"{counted(words.num_prefixes, 'shared beginning')} of {words.shared_prefix:,} tokens")
    if words.turns > 1:
        parts.append(f"{words.turns} turns with {words.think_s:g} s between")
    return "; ".join(parts)


def _pace(config: Config) -> str:
    load = config.load
    if load.rate is None:
        ask = "asks" if config.num_users == 1 else "ask"
        return f"of {counted(config.num_users or 0, 'user')} who {ask} again once answered"
    if load.ramp_to is not None:
        return f"at a rate that goes from {load.rate:g}/s to {load.ramp_to:g}/s"
    spread = config.words.variation
    return f"at {load.rate:g}/s ({SPREAD_WORDS.get(spread, f'gamma, spread {spread:g}')})"


def workload_of(config: Config, trace: Trace | None) -> dict[str, Any]:
    """What two benchmarks must have in common to be compared."""
    load, words = asdict(config.load), asdict(config.words)
    for name in ("repeats", "warm_up", "timeout_s"):
        load.pop(name)
    load["concurrency"] = config.num_users
    if config.target.find_knee:
        load.pop("rate")
    words.pop("nonce")
    common = {"endpoint": config.endpoint, "slo": config.target.slo, "find_knee": config.target.find_knee, "load": load}
    if trace is None:
        return common | {"words": words}
    return common | {"trace": trace_digest(trace)}
