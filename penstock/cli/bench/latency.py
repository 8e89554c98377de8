"""`penstock bench latency`: how long a batch of equal requests takes, over and over."""

from dataclasses import asdict, dataclass, field

from penstock.amounts import counted
from penstock.cli.bench.offline import print_intervals, repeat_offline, run_fresh
from penstock.cli.loading import open_llm
from penstock.cli.talk.generate import ModelByFlag
from penstock.config import CacheConfig, EngineConfig, ParallelConfig, SchedulerConfig, SpeculationConfig
from penstock.console.show import print_json
from penstock.fields import Checked, leaf
from penstock.tools.workload.arrivals import AtOnce
from penstock.tools.workload.lengths import Fixed
from penstock.tools.workload.workload import Recipe


@dataclass(frozen=True, slots=True)
class LatencyBatch(Checked):
    """What is computed."""

    batch: int = leaf(1, 1, 100_000)
    """Requests at once"""
    prompt: int = leaf(128, 1, 10_000_000)
    """Prompt tokens of each"""
    answer: int = leaf(64, 1, 10_000_000)
    """Answer tokens of each"""
    repeats: int = leaf(5, 1, 10_000)
    """Runs that count; one more comes before them"""


@dataclass(frozen=True, slots=True)
class Config:
    """Measure how long a batch of equal requests takes, without a server.

    Every run has tokens of its own, so that no prefix cache shortens it.
    """

    json: bool = False
    """Print JSON for machines"""
    load: LatencyBatch = field(default_factory=LatencyBatch)
    model: ModelByFlag = field(default_factory=ModelByFlag)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


def run(config: Config) -> int:
    load = config.load
    with open_llm(
        EngineConfig(config.model, config.cache, config.scheduler, config.parallel, config.speculation)
    ) as llm:
        recipe = Recipe(AtOnce(), Fixed(load.prompt), Fixed(load.answer), load.batch, vocab_size=llm.spec.vocab_size)
        run_fresh(llm, recipe, 0, "warming up")
        runs, status = repeat_offline(llm, recipe, 0, load.repeats)
    figures = {
        "batch, ms": [1e3 * one.summary.duration_s for one in runs],
        "first token (TTFT p50), ms": [1e3 * one.summary.ttft.p50 for one in runs],
        "all first tokens, ms": [1e3 * one.prefill_s for one in runs],
    }
    if load.answer > 1:  # an answer of one token has no token after it
        figures["a token after (TPOT p50), ms"] = [1e3 * one.summary.tpot.p50 for one in runs]
        figures["slowest gap (ITL max), ms"] = [1e3 * one.summary.itl.max for one in runs]
    figures["output tokens/s"] = [one.summary.output_tokens_per_s for one in runs]
    if config.json:
        print_json({"batch": asdict(load), "model": config.model.model, "figures": figures})
        return status
    what = f"{counted(load.batch, 'request')} of {counted(load.prompt, 'prompt token')} and {load.answer:,} to generate"
    print(f"{what}, {counted(len(runs), 'run')}\n")
    print_intervals(figures)
    return status
