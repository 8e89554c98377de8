"""A plan as plain data: what `--json` prints, what `plan verify` reads, and what the report lays out."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.cli.plan.config import Config
from penstock.cli.plan.launch import launch_lines, standing
from penstock.cli.plan.model import Described
from penstock.console import config_file
from penstock.metrics.summary import Percentiles
from penstock.runtime.formats.hub import default_cache
from penstock.runtime.models.spec import ModelSpec
from penstock.tools.evaluate.kept import kept_reports
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.capacity import CapacityTrial
from penstock.tools.planner.constraint import extrapolated_fraction, moments
from penstock.tools.planner.figures import decode_floor_s
from penstock.tools.planner.money import PURCHASE
from penstock.tools.planner.regions import plan_regions, read_regions
from penstock.tools.planner.search import Option, Plan, Search, WhatIf

VERSION = 1


def plan_data(
    config: Config, described: Described, search: Search, plan: Plan, num_runs: int, seconds: float
) -> dict[str, Any]:
    spec, sizes = described.spec, plan.demand.sizes
    chosen = plan.chosen
    quality = measured_quality(spec)
    return {
        "penstock_plan": VERSION,
        "asked": config_file.as_data(config),
        "model": {
            "name": config.model,
            "source": described.source,
            "num_parameters": spec.num_parameters,
            "num_active_parameters": spec.num_active_parameters,
            "max_context": spec.max_context,
        },
        "demand": {
            "rate": plan.demand.rate,
            "users": config.load.users,
            "think_s": config.load.think_s,
            "mean_prompt": sizes.mean_prompt,
            "mean_answer": sizes.mean_answer,
            "p95_total": sizes.p95_total,
            "largest_total": sizes.largest_total,
            "shared_prefix": plan.demand.shared_prefix,
            "num_turns": plan.demand.num_turns,
        },
        "target": asdict(plan.target),
        "took": {"seconds": round(seconds, 2), "num_simulations": num_runs, "num_fitting": plan.num_bounded},
        "chosen": None if chosen is None else option_data(chosen, plan, described.source, quality),
        "options": [option_data(option, plan, described.source, quality) for option in plan.options],
        "pareto": [asdict(point) for point in plan.pareto],
        "rejected": [asdict(one) for one in plan.rejected],
        "at_load": None if plan.at_load is None or chosen is None else _at_load(plan.at_load, chosen),
        "what_ifs": [_what_if_data(one, chosen) for one in plan.what_ifs],
        "constraint": _constraint_data(plan),
        "trust": trust_data(config, search, plan),
        "self_host": plan.cost
        and asdict(plan.cost) | {"dollars": plan.cost.dollars, "assumed": asdict(search.assumed)},
        "regions": [
            asdict(one) for one in plan_regions(read_regions(config.space.regions), plan.demand.rate, plan.options)
        ],
    }


def measured_quality(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """By number format: what a report of `penstock eval report` says of this model in it; the least loss, where several do."""
    shape = (spec.num_parameters, spec.num_layers, spec.hidden_size, spec.vocab_size)
    found: dict[str, dict[str, Any]] = {}
    for report in kept_reports(shape, default_cache()):
        if report["loss"] is not None:
            kl = (report["divergence"] or {}).get("kl")
            values = {"method": report["method"], "perplexity_change": report["loss"], "kl": kl}
            found.setdefault(str(report["format"]), {**values, "bits_per_weight": report["after"]["bits_per_weight"]})
    return found


def option_data(option: Option, plan: Plan, source: str, quality: Mapping[str, Any]) -> dict[str, Any]:
    candidate, at = option.candidate, option.capacity.at
    sizes = plan.demand.sizes
    tokens = option.replica_rate * sizes.mean_answer
    users = option.replica_rate * at.summary.e2e.mean if at else 0.0  # as many as come in the time each stays
    weights = option.fit.total_weight_bytes
    return {
        "name": candidate.name,
        "hardware": candidate.hardware.name,
        "layout": asdict(candidate.layout),
        "weights": candidate.weights,
        "quality": quality.get(candidate.weights),
        **{name: getattr(candidate, name) for name in ("kv", "max_sequences", "max_batch_tokens", "max_context")},
        "devices_per_replica": candidate.num_devices,
        "fit": asdict(option.fit),
        "decode_floor_s": decode_floor_s(weights, candidate.hardware.achievable) if not candidate.measured else None,
        "bound_rate": option.steady.rate * candidate.num_copies,
        "capacity": {
            "requests_per_s": option.replica_rate,
            "good_requests_per_s": option.replica_rate * at.good_fraction if at else 0.0,
            "users": users,
            "tokens_per_s": tokens,
            "tokens_per_s_per_device": tokens / candidate.num_devices,
            "tokens_per_s_per_user": 1.0 / at.summary.tpot.p50 if at and at.summary.tpot.p50 else None,
            "run": None if at is None else run_data(at, candidate),
        },
        "num_replicas": option.num_replicas,
        "num_devices": option.num_devices,
        "dollars_per_hour": option.hourly,
        "dollars_per_million": None if option.price is None else asdict(option.price),
        "gaps": list(option.gaps),
        "runs_today": standing(candidate, option.gaps),
        "launch": launch_lines(option, source),
    }


def _at_load(run: CapacityTrial, chosen: Option) -> dict[str, Any]:
    """Utilisation is of the rate at which the SLO is still met."""
    carried = chosen.replica_rate * chosen.num_replicas
    return run_data(run, chosen.candidate) | {"rho": run.rate / carried if carried else None}


def run_data(run: CapacityTrial, candidate: Candidate) -> dict[str, Any]:
    summary, replicas = run.summary, run.result.replicas
    samples = [sample for replica in replicas for sample in replica.history if sample.time_s >= run.start_s]
    waiting = sum(sample.num_waiting for sample in samples) / max(len(samples), 1) * len(replicas)
    waited = moments(run, candidate)
    return {
        "rate": run.rate,
        "num_copies": run.num_copies,
        "num_requests": summary.num_requests,
        **{name: getattr(run, name) for name in ("good_fraction", "late_ttft_fraction", "late_tpot_fraction")},
        **{name: _percentiles(getattr(summary, name)) for name in ("ttft", "tpot", "e2e")},
        "mean_queue_s": waiting / run.rate,
        "inside": run.rate * summary.e2e.mean,
        "max_kv_usage_fraction": max(replica.max_kv_usage_fraction for replica in replicas),
        "preemptions_per_request": run.result.num_preemptions / max(summary.num_requests, 1),
        "cached_prompt_fraction": summary.num_cached_tokens / max(summary.num_prompt_tokens, 1),
        "waited_for_blocks_fraction": waited.blocks,
        "waited_for_rows_fraction": waited.rows,
    }


def _percentiles(values: Percentiles) -> dict[str, float]:
    return {name: getattr(values, name) for name in ("p50", "p90", "p95", "p99")}


def _what_if_data(one: WhatIf, chosen: Option | None) -> dict[str, Any]:
    run = None if one.run is None or chosen is None else run_data(one.run, chosen.candidate)
    return {"what": one.words, "is_met": one.is_met, "consequence": one.consequence, "run": run}


def _constraint_data(plan: Plan) -> dict[str, Any] | None:
    constraint, chosen, remedy = plan.constraint, plan.chosen, plan.remedy
    if constraint is None or chosen is None:
        return None
    gain = None
    if remedy is not None and chosen.replica_rate:
        gain = remedy.replica_rate / chosen.replica_rate - 1.0
    words = constraint.remedy_words
    return {"kind": constraint.kind, "words": constraint.words, "remedy": words or None, "gain": gain}


def trust_data(config: Config, search: Search, plan: Plan) -> dict[str, Any]:
    """Where the numbers come from; of prices, those that were not given."""
    share, bought = PURCHASE[config.space.purchase], ""
    if share != 1.0:
        bought = f"; {100 * share:g} % of that for {config.space.purchase} hours, as is usual of large clouds"
    common = {
        "memory": "the engine's own sizing, from published shapes and sizes",
        "scheduling": "the engine's own scheduler under a virtual clock",
        "load": "a recorded trace" if plan.demand.trace is not None else "drawn from distributions of lengths",
        "capacity_resolution": 2 ** (1 / 32) - 1,
        "exchanges": _exchanges(plan),
        "prices": {
            one.name: one.price_source + bought
            for one in search.search_space.hardware
            if one.price_source and search.prices.get(one.name) == share * (one.price_per_hour or 0.0)
        },
    }
    path, chosen = config.space.profile, plan.chosen
    if path is not None and chosen is not None:
        from penstock.tools.measure.profiles import open_profile

        profile = open_profile(path)
        share = extrapolated_fraction(chosen.candidate)
        return common | {
            "step_times": "measured",
            "measured": dict(profile.measuring),
            "step_error": profile.fitted.errors["all"].median,
            "back_test": dict(profile.back_test),
            "all_reduce": [each.as_data() for each in profile.all_reduce],
            "extrapolated_fraction": share,
            "is_extrapolating": share > 0.01,
        }
    ceilings = {one.name: "measured" if one.measured else "assumed" for one in search.search_space.hardware}
    return common | {
        "step_times": "roofline",
        "ceilings": ceilings,
        "step_error": None,
        "back_test": None,
        "is_extrapolating": True,
    }


def _exchanges(plan: Plan) -> dict[str, str]:
    """What ranks talk over, by device, where layouts of several were considered."""
    found = {}
    for option in plan.options:
        device, count = option.candidate.hardware, option.candidate.layout.devices_per_copy
        if count > 1:
            link = device.link(count)
            is_timed = link == device.measured_link
            origin = "timed between ranks of it" if is_timed else f"from the figures of its {link.kind}"
            found[device.name] = f"{link}; {origin}"
    return found
