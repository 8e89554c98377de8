"""`penstock profile`: measure how long steps take on this machine, and keep it for simulator and planner."""

import hashlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from penstock.amounts import format_bytes
from penstock.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig, configure
from penstock.console.files import cache_folder, check_writable, read_text, write_file
from penstock.console.progress import ProgressBar
from penstock.console.show import print_table, printable
from penstock.errors import ConfigError
from penstock.fields import Checked, leaf
from penstock.tools.measure.calibration import Calibration, CalibrationPieces, StepRecorder
from penstock.tools.measure.ranks import keep_all_reduce, measure_all_reduce
from penstock.tools.measure.this_machine import NAME as THIS_MACHINE
from penstock.tools.measure.this_machine import all_reduce_path, find_hardware, machine_facts
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Poisson
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.workload import Recipe

if TYPE_CHECKING:
    from penstock.tools.cost.measured.profile import Profile
    from penstock.tools.measure.accuracy import AccuracyComparison

LOG_FACTS = ("model", "vocab_size", "depth", "sizing", "machine", "versions", "config")
"""What a step log's header tells a profile."""
BACK_TEST_SHARE = 0.2
"""Of the time that measuring takes."""
BACK_TEST_LOAD = 0.6
"""Of what the engine could do at most: far below it nothing waits, near it everything does."""
NUM_BACK_TEST = 24
WARNED_FRACTION = 0.05
"""Of the machine: what others may use before we warn of it."""


@dataclass(frozen=True, slots=True)
class Config(Checked):
    """Measure how long steps take here, and fit a cost that `simulate --profile` and the planner can use.

    Drives the engine through batches of every size and shape for about a minute, says how far off the fit is on steps it
    has not seen, and proves it on a workload that is served and simulated.
    """

    steps: Path | None = None
    """Fit this log of a live server (serve --step-log) instead of measuring"""
    out: Path | None = None
    """File to write (default: in the user's cache directory, by model and machine)"""
    seconds: float = leaf(45.0, 1, 3600)
    """How long to measure; one round of all shapes is the least"""
    seed: int = 0
    """Of the prompts' tokens and of the workload that proves the fit"""
    json: bool = False
    """Print the profile itself"""
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    @property
    def engine(self) -> EngineConfig:
        return EngineConfig(self.model, self.cache, self.scheduler, self.parallel)


def run(config: Config) -> int:
    check_writable(config.out)
    profile = _measured(config) if config.steps is None else profile_of_log(config.steps)
    path = config.out or default_path(profile, "" if config.steps is None else "-from-log")
    write_file(path, profile.to_json())
    if config.json:
        print(profile.to_json(), end="")
    else:
        _print(profile, path)
    return 0


def default_path(profile: "Profile", suffix: str) -> Path:
    """One file a model, machine and version of what computes; a live server's steps, few or alike, replace no measurement."""
    key = json.dumps([profile.machine, profile.versions, profile.config], sort_keys=True, default=str)
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in profile.model)
    return cache_folder() / "profiles" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}{suffix}.json"


def profile_of_log(path: Path) -> "Profile":
    """A profile of a live server, from the steps it logged."""
    from penstock.tools.cost.measured.fitting import fit_steps
    from penstock.tools.cost.measured.profile import Profile, read_steps

    header, steps = read_steps(read_text(path), str(path))
    missing = [name for name in LOG_FACTS if name not in header]
    if missing:
        raise ConfigError(f"{path} does not name its {missing[0]}; make a new log with serve --step-log")
    fitted = fit_steps(steps, overlaps=header["depth"] == 2)
    span_s = steps[-1].start_s - steps[0].start_s
    measuring = {"from": "a live server's step log", "seconds": round(span_s, 1), "num_steps": len(steps)}
    return Profile(**{name: header[name] for name in LOG_FACTS}, fitted=fitted, measuring=measuring)


def _measured(config: Config) -> "Profile":
    """Torch is imported here and not before."""
    from penstock.assembly.engine import load, make_engine, size
    from penstock.tools.cost.measured.fitting import fit_steps
    from penstock.tools.cost.measured.profile import Profile
    from penstock.tools.measure.profiles import Measuring

    facts = machine_facts()
    all_reduce = measure_all_reduce(facts)
    keep_all_reduce(all_reduce_path(facts), all_reduce)
    with ProgressBar() as progress:
        loaded = load(config.engine, progress=progress)
    sizing = size(config.engine, loaded)
    find_hardware(THIS_MACHINE, loaded.weight_bytes)
    recorder = StepRecorder()
    plain = configure(config.engine, speculate="off")  # what drafts save is not what a step takes
    engine = make_engine(plain, loaded, sizing, recorder.record)
    begin_s = time.monotonic()
    with ProgressBar("s") as progress:
        calibration = Calibration(engine, recorder, loaded.spec.vocab_size, Random(config.seed), progress)
        kept = calibration.run(config.seconds)
    measuring = {
        "from": "penstock profile",
        "seconds": round(time.monotonic() - begin_s, 1),
        "num_steps": len(recorder.steps),
        "disturbed_fraction": calibration.disturbed_fraction,
    }
    name = loaded.files.name if loaded.files is not None else config.model.model
    profile = Profile(
        **Measuring(name, config.engine, sizing, loaded.spec.vocab_size, engine.depth).facts(),
        fitted=fit_steps(kept, overlaps=engine.depth > 1),
        measuring=measuring,
        shape={"num_layers": loaded.spec.num_layers, "hidden_size": loaded.spec.hidden_size},
        all_reduce=all_reduce,
    )
    return replace(profile, back_test=back_test(profile, config, calibration).as_data())


def back_test(profile: "Profile", config: Config, calibration: Calibration) -> "AccuracyComparison":
    """Some seconds of chats that come at random, served and simulated: by a machine as fast and as even as it was meanwhile."""
    from penstock.tools.cost.measured.fitting import slowdowns_along
    from penstock.tools.measure.accuracy import AccuracyComparison, MeasuredRun, measure, predict
    from penstock.tools.measure.profiles import fleet_of

    limits = calibration.engine.scheduler.limits
    longest = min(limits.max_context // 2, 300)
    fleet = fleet_of(profile, config.engine)
    recipe = Recipe(AtOnce(), Uniform(8, longest), Uniform(4, 64), NUM_BACK_TEST, vocab_size=profile.vocab_size)
    most = simulate(fleet, recipe.make(config.seed)).summary.requests_per_s
    count = min(max(round(BACK_TEST_LOAD * most * BACK_TEST_SHARE * config.seconds), 5), 400)
    recipe = replace(recipe, arrivals=Poisson(BACK_TEST_LOAD * most), num_requests=count)
    workload = recipe.make(config.seed + 1)
    pieces = CalibrationPieces(calibration)
    pieces.begin()
    measured = measure(fleet, calibration.engine, workload, between=pieces.between)
    slowdowns = slowdowns_along(profile.fitted, calibration.recorder.steps)
    moments, outside_fraction = predict(
        fleet_of(replace(profile, fitted=replace(profile.fitted, slowdowns=slowdowns)), config.engine), workload
    )
    return AccuracyComparison((MeasuredRun.joined(moments),), (measured,), outside_fraction, moments)


def _print(profile: "Profile", path: Path) -> None:
    from penstock.tools.measure.accuracy import moment_rows

    fitted, measuring, sizing = profile.fitted, profile.measuring, profile.sizing
    machine = f"{profile.machine.get('processor')}, {profile.machine.get('num_processors')} processors"
    print(f"model       {printable(profile.model)}, {sizing['num_blocks']:,} blocks of {sizing['block_size']}")
    print(f"machine     {printable(machine)}")
    print(f"steps       {fitted.num_steps:,} fitted, of {measuring['num_steps']:,} in {measuring['seconds']} s")
    most = fitted.most
    shape = f"{most.num_long_tokens:,} prompt tokens and {most.num_chunks:,} sequences a step"
    print(f"range       {shape}, contexts up to {most.max_kv:,}")
    disturbed = measuring.get("disturbed_fraction") or 0.0
    if disturbed > WARNED_FRACTION:
        reported = f"other programs used {100 * disturbed:.0f} % of this machine meanwhile"
        print(f"warning     {reported}; measure again when it is quiet")
    print()
    percent = [[f"{100 * value:.1f} %" for value in (one.median, one.p95, one.bias)] for one in fitted.errors.values()]
    rows = [(kind, one.num_cells, *each) for (kind, one), each in zip(fitted.errors.items(), percent)]
    print_table(("error on steps not fitted", "cells", "median", "p95", "bias"), rows)
    _print_all_reduce(profile)
    if profile.back_test:
        print()
        headings = ("proof on a workload not fitted", "predicted", "by the moment", "measured", "error")
        print_table(headings, moment_rows(profile.back_test))
    print()
    print(f"penstock simulate --profile {path}")


def _print_all_reduce(profile: "Profile") -> None:
    """Microseconds by size, and the line that simulator and planner charge layouts of several ranks."""
    if not profile.all_reduce:
        return
    print()
    rows = []
    for each in profile.all_reduce:
        link = each.link("socket")
        times = [f"{1e6 * timed.seconds:,.0f}" for timed in each.timed]
        rows.append((each.through, *times, str(link), f"{100 * each.error:.0f} %"))
    sizes = [format_bytes(timed.size_bytes) for timed in profile.all_reduce[0].timed]
    print_table(("all-reduce of two ranks, us", *sizes, "fitted", "off by"), rows)
