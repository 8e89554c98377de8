"""`penstock plan`: what to buy and how to launch it, searched on the simulator, ending in a command.

Puts the parts of `penstock.tools.planner` together; they are imported when the command runs.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from penstock.cli.bench.config import parse_slo
from penstock.cli.plan.config import MEASURED, Config, ExpectedLoad, PlanGoal
from penstock.cli.plan.data import plan_data
from penstock.cli.plan.launch import cluster_text, config_text, gaps_of
from penstock.cli.plan.model import Described, describe
from penstock.cli.plan.report import print_plan
from penstock.console.files import check_writable, write_file
from penstock.console.progress import StatusLine
from penstock.console.show import print_json
from penstock.errors import ConfigError
from penstock.runtime.sizing import MAX_BATCH_TOKENS
from penstock.tools.cost.hardware import Hardware, find
from penstock.tools.cost.precision import KvFormat, Precision, WeightFormat
from penstock.tools.measure.profiles import cost_of, open_profile, sizing_of
from penstock.tools.measure.this_machine import find_hardware, parts_of
from penstock.tools.planner import space
from penstock.tools.planner.candidate import Candidate, MeasuredEngine
from penstock.tools.planner.demand import KINDS, Demand, SloTarget
from penstock.tools.planner.money import PURCHASE
from penstock.tools.planner.search import Plan, Search
from penstock.tools.planner.space import Found, Rejected, SearchSpace, layouts
from penstock.tools.planner.steady import bound
from penstock.tools.workload import lengths
from penstock.tools.workload.trace_files import read


def run(config: Config) -> int:
    check_writable(config.emit)
    start_s = time.monotonic()
    described = describe(config.model)
    demand, progress = demand_of(config.load, config.goal, config.asked.shares), PlanProgress()
    search = search_of(config, progress)
    with progress:
        found, rejected = explore(config, described, demand, search)
        plan = search.plan(found, rejected, demand)
    data = plan_data(config, described, search, plan, progress.num_runs, time.monotonic() - start_s)
    if config.emit is not None:
        emit(config, described, plan, data)
    if config.json:
        print_json(data)
    else:
        print_plan(data)
    return 0 if plan.chosen is not None and plan.chosen.num_replicas else 1


def filled(load: ExpectedLoad) -> ExpectedLoad:
    """With the lengths of its workload where none are given."""
    kind = KINDS[load.workload]
    shared = kind.shared_prefix if load.shared_prefix is None else load.shared_prefix
    return replace(
        load, prompts=load.prompts or kind.prompts, answers=load.answers or kind.answers, shared_prefix=shared
    )


def demand_of(load: ExpectedLoad, goal: PlanGoal, adapters: tuple[float, ...] = ()) -> Demand:
    load = filled(load)
    demand = Demand(
        rate=load.rate,
        prompts=lengths.parse(load.prompts),
        answers=lengths.parse(load.answers),
        shared_prefix=load.shared_prefix or 0,
        variation=load.variation,
        trace=None if load.trace is None else read(load.trace),
        seed=load.seed,
        conversation=load.conversation,
        adapters=adapters,
    )
    if load.users is None:
        return demand
    return demand.of_users(load.users, load.think_s, target_of(goal).slo)


def target_of(goal: PlanGoal) -> SloTarget:
    return SloTarget(parse_slo(goal.slo), goal.attainment)


def search_of(config: Config, progress: "PlanProgress") -> Search:
    space = config.space
    if space.profile is not None:
        hardware: tuple[Hardware, ...] = _measured_hardware(space.profile, space.max_devices)
    else:
        named = dict.fromkeys(find_hardware(name) for name in _listed("--hardware", space.hardware))
        hardware = tuple(dict.fromkeys(part for one in named for part in parts_of(one, space.max_devices)))
    search_space = SearchSpace(
        hardware=hardware,
        weights=_formats("--weights", space.weights, WeightFormat),
        kv=_formats("--kv", space.kv, KvFormat),
        max_devices=space.max_devices,
        max_context=space.max_context,
        adapters=config.asked,
    )
    share = PURCHASE[space.purchase]
    prices = {one.name: share * one.price_per_hour for one in hardware if one.price_per_hour is not None}
    for name, price in _prices(space.price):
        prices[MEASURED if name == MEASURED else find_hardware(name).name] = price
    if MEASURED in prices:
        parts = [one.num_parts for one in hardware if one.num_parts > 1]
        prices |= {f"{MEASURED}/{count}": prices[MEASURED] / count for count in parts}
    return Search(target_of(config.goal), search_space, prices, config.money, gaps_of, progress.show)


def _measured_hardware(path: Path, max_devices: int) -> tuple[Hardware, ...]:
    """The machine of a profile, as far as names go: memory and times come from the profile itself. Its parts, if what lies
    between ranks was measured."""
    profile = open_profile(path)
    is_gpu = bool(profile.machine.get("gpus"))
    named = replace(find("h100-sxm" if is_gpu else "cloud-2core"), name=MEASURED, price_per_hour=None, measured=None)
    if is_gpu or not profile.all_reduce:
        return (named,)
    most = min(max_devices, int(profile.machine.get("num_processors", 1)))
    linked = replace(named, measured_link=profile.all_reduce[0].link("socket"))
    return linked, *(linked.part(count) for count in (2, 4, 8) if count <= most)


def explore(config: Config, described: Described, demand: Demand, search: Search) -> tuple[list[Found], list[Rejected]]:
    """Candidates that fit: by arithmetic, or the one engine that was measured."""
    if config.space.profile is not None:
        return list(profiled(config.space.profile, config, described, demand, search)), []
    return space.explore(described.spec, search.search_space, demand, search.target.slo, described.file_bytes)


def profiled(path: Path, config: Config, described: Described, demand: Demand, search: Search) -> Iterator[Found]:
    """The engine that was measured, and the same cut over ranks where the profile says what those take."""
    if config.asked.adapters:
        raise ConfigError("a profile does not say what adapters take; plan --adapters for devices by name")
    profile = open_profile(path)
    if profile.vocab_size != described.spec.vocab_size:
        raise ConfigError(f"the profile is of {profile.model}, another model than {config.model}; give its own")
    asked = profile.config.get("scheduler", {})
    budget = int(asked.get("max_batch_tokens") or profile.sizing.get("max_batch_tokens", MAX_BATCH_TOKENS))
    sequences, context = int(asked.get("max_sequences", 256)), config.space.max_context
    for hardware in search.search_space.hardware:
        for layout in layouts(described.spec, hardware, hardware.num_parts):
            candidate = Candidate(
                described.spec, hardware, layout, "file", "bf16", Precision(), sequences, budget, context
            )
            engine = MeasuredEngine(cost_of(profile, layout), sizing_of(profile, candidate.engine), profile.depth)
            candidate = replace(candidate, measured=engine)
            yield Found(candidate, bound(candidate, demand.sizes, search.target.slo, demand.mean_repeated))


def emit(config: Config, described: Described, plan: Plan, data: dict[str, Any]) -> None:
    path = config.emit
    if path is None or plan.chosen is None:
        return
    write_file(path, config_text(plan.chosen, config.model, described.source, str(path), config.space.profile))
    if described.source and not plan.chosen.gaps:
        beside = path.with_suffix(".cluster.toml")
        write_file(beside, cluster_text(plan.chosen, config.model, described.source, str(beside)))
    write_file(path.with_suffix(".json"), json.dumps(data, indent=1, allow_nan=False) + "\n")


class PlanProgress(StatusLine):
    """A line on a terminal that says what is being simulated."""

    def __init__(self) -> None:
        super().__init__("sizing")
        self.num_runs = 0

    def show(self, words: str) -> None:
        self.num_runs += 1
        self.say(f"simulating {words}; {self.num_runs} runs so far")


def _listed(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"{flag} is empty; name at least one")
    return names


def _formats(flag: str, text: str, known: Any) -> tuple[str, ...]:
    names = [name.lower() for name in _listed(flag, text)]
    for name in names:
        if name not in get_args(known):
            raise ConfigError(f"{flag} takes {', '.join(get_args(known))}, with commas between, not {name!r}")
    return tuple(dict.fromkeys(names))


def _prices(texts: tuple[str, ...]) -> list[tuple[str, float]]:
    found = []
    for text in (part for whole in texts for part in whole.split(",") if part.strip()):
        name, sign, amount = text.partition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if not sign or not 0.0 <= price < 1e6:
            raise ConfigError(f"--price takes DEVICE=DOLLARS, such as h100=2.5, not {text.strip()!r}")
        found.append((name, price))
    return found
