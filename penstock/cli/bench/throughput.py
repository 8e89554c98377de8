"""`penstock bench throughput`: how many tokens a second the engine makes when it has all the work it can take."""

from dataclasses import asdict, dataclass, field

from penstock.amounts import counted
from penstock.cli.bench.offline import print_intervals, repeat_offline, run_fresh
from penstock.cli.loading import open_llm
from penstock.cli.talk.generate import ModelByFlag
from penstock.config import CacheConfig, EngineConfig, ParallelConfig, SchedulerConfig, SpeculationConfig
from penstock.console import config_file
from penstock.console.show import print_json
from penstock.fields import check, leaf, setting
from penstock.tools.workload import lengths
from penstock.tools.workload.arrivals import AtOnce
from penstock.tools.workload.workload import Recipe, SharedPrefix


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """What is computed."""

    num_requests: int = leaf(64, 1, 1_000_000)
    """Requests, all handed over at once"""
    prompts: str = "256"
    """Prompt tokens: 512, 100-1024, lognormal:MEDIAN:SIGMA[:LOW-HIGH], file:PATH or sharegpt-prompts"""
    answers: str = "64"
    """Answer tokens, written likewise, or sharegpt-answers"""
    shared_prefix: int = leaf(0, 0, 10_000_000)
    """Tokens that all prompts begin with, before those of their own"""
    repeats: int = leaf(3, 1, 1000)
    """Runs, each with tokens of its own"""
    warm_up: bool = setting(True)
    """Compute a few short requests before, uncounted"""
    seed: int = 0
    """The same seed gives the same lengths"""

    def __post_init__(self) -> None:
        check(self)
        for written in (self.prompts, self.answers):
            lengths.parse(written)  # a wrong one is told before a model is loaded

    def recipe(self, vocab_size: int) -> Recipe:
        prefix = SharedPrefix(self.shared_prefix) if self.shared_prefix else None
        return Recipe(
            AtOnce(), lengths.parse(self.prompts), lengths.parse(self.answers), self.num_requests, prefix, vocab_size
        )


@dataclass(frozen=True, slots=True)
class Config:
    """Measure how many tokens a second the engine generates, without a server.

    All requests are handed over at once; answers are as long as asked. Every run has tokens of its own, so that the prefix
    cache gives only what the requests of one run share.
    """

    json: bool = False
    """Print JSON for machines"""
    load: OfflineLoad = field(default_factory=OfflineLoad)
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
        recipe = load.recipe(llm.spec.vocab_size)
        if load.warm_up:
            warm = Recipe(AtOnce(), lengths.Fixed(16), lengths.Fixed(4), 4, vocab_size=llm.spec.vocab_size)
            run_fresh(llm, warm, 0, "warming up")
        runs, status = repeat_offline(llm, recipe, load.seed, load.repeats)
    each = [one.summary for one in runs]
    figures = {
        "output tokens/s": [one.output_tokens_per_s for one in each],
        "prompt tokens/s": [one.num_prompt_tokens / one.duration_s for one in each],
        "total tokens/s": [one.num_prompt_tokens / one.duration_s + one.output_tokens_per_s for one in each],
        "requests/s": [one.requests_per_s for one in each],
        "duration, s": [one.duration_s for one in each],
        "prompt tokens cached, %": [100.0 * one.num_cached_tokens / max(one.num_prompt_tokens, 1) for one in each],
    }
    if config.json:
        print_json({"asked": config_file.as_data(config), "figures": figures, "runs": [asdict(one) for one in runs]})
        return status
    first = each[0]
    print(f"{counted(load.num_requests, 'request')} at once, {first.num_prompt_tokens:,} prompt tokens,", end=" ")
    print(f"{first.num_output_tokens:,} generated\n")
    print_intervals(figures)
    return status
