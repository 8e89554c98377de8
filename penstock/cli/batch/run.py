"""`penstock batch run`: a file of requests answered here and now, without a server."""

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculationConfig


@dataclass(frozen=True, slots=True)
class Config:
    """Answer a file of requests, one a line as the batch API takes them, without a server.

    Answers go to OUTPUT in the order of the file, failed requests beside it. Stopped at any moment, the same command goes on.
    """

    file: Path = field(metadata={"positional": True})
    """File of requests: a JSON object a line with custom_id, method, url and body"""
    output: Path | None = None
    """File to write answers to (default: FILE with .out.jsonl)"""
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    @property
    def engine(self) -> EngineConfig:
        return EngineConfig(self.model, self.cache, self.scheduler, self.parallel, self.speculation)


def run(config: Config) -> int:
    from penstock.runtime.engine.spawn import Spawned

    model = config.model.model
    command = [sys.executable, "-m", "penstock.assembly.worker", f"--model={model}"]
    output = config.output or config.file.with_suffix(".out.jsonl")
    errors = output.with_name(f"{output.stem}.errors.jsonl")
    with Spawned(command) as spawned:
        from penstock.assembly.offline_batch import OfflineBatch
        from penstock.assembly.text import fetch, open_text
        from penstock.console.progress import ProgressBar

        batch = OfflineBatch(config.file, output, errors)
        fetch(model)
        start_s = time.monotonic()
        totals = batch.totals
        try:
            with ProgressBar("requests") as progress:
                batch.run(config.engine, command, open_text(model), spawned, partial(progress, "answering"))
        except KeyboardInterrupt:
            num_done = totals.num_resumed + totals.num_answered
            print(f"{num_done:,} of {totals.num_total:,} answered; the same command goes on", file=sys.stderr)
            raise
    seconds = time.monotonic() - start_s
    resumed = f", {totals.num_resumed:,} of them by an earlier run" if totals.num_resumed else ""
    print(f"{totals.num_total:,} requests answered{resumed}, {totals.num_failed:,} with an error, in {seconds:.1f} s")
    print(f"{totals.num_input:,} tokens in, {totals.num_output:,} out: {totals.num_output / seconds:.0f} a second")
    print(f"answers: {output}" + (f"; errors: {errors}" if totals.num_failed else ""))
    return 0
