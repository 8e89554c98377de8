"""`penstock eval`: how good a model is, measured on a text."""

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from penstock.cli.loading import open_llm
from penstock.config import (
    AdapterConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from penstock.console.progress import ProgressBar
from penstock.console.show import print_json, print_table
from penstock.errors import ConfigError

DEFAULT_CONTEXT = 1024
ADAPTER = "adapter"
WORTHWHILE = 1.02
"""Times as fast as without drafts, below which they are not worth it."""


@dataclass(frozen=True, slots=True)
class Config:
    """Measure a model on a text.

    Perplexity: how many tokens, on average, the model hesitates between; lower is better. Compare it between models only where
    they share a tokenizer.

    Drafts: how often each drafter guesses the text's next tokens, and how much faster it would have been generated here.
    """

    measure: Literal["perplexity", "drafts"] = field(metadata={"positional": True})
    """What to measure"""
    file: Path = field(metadata={"positional": True})
    """Text to measure on"""
    model: ModelConfig = field(default_factory=ModelConfig)
    context: int | None = None
    """Tokens a window holds (default: 1024, or what the model takes)"""
    stride: int | None = None
    """Tokens a window moves on; the others are seen again, not scored (default: half the context)"""
    tokens: int | None = None
    """Measure on this many tokens from the beginning only"""
    adapter: str | None = None
    """Adapter to lay over the model: a PEFT directory or a GGUF adapter"""
    draft_model: str | None = None
    """Smaller model to try as a drafter too"""
    drafter: tuple[str, ...] = ()
    """Drafters to try beside those without files, as --speculate names them: medusa:DIR, eagle:DIR, self or self:DIR"""
    json: bool = False
    """Print JSON for machines"""
    cache: CacheConfig = field(default_factory=lambda: CacheConfig(prefix_caching=False))
    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_sequences=16))
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


def run(config: Config) -> int:
    text = _read(config.file)
    if config.measure == "drafts":
        return _drafts(config, text)
    adapters = AdapterConfig(() if config.adapter is None else (f"{ADAPTER}={config.adapter}",))
    engine = EngineConfig(config.model, config.cache, config.scheduler, config.parallel, adapter=adapters)
    with open_llm(engine) as llm:
        from penstock.offline.perplexity import longest_context, measure

        token_ids = llm.files.tokenizer.encode(text, special=False)[: config.tokens]
        context = config.context or min(DEFAULT_CONTEXT, longest_context(llm))
        stride = config.stride or max(context // 2, 1)
        start_s = time.monotonic()
        with ProgressBar("tokens") as progress:
            name = "" if config.adapter is None else ADAPTER
            told = partial(progress, "measuring")
            found = measure(llm, token_ids, context, stride, told, adapter=name)
        seconds = time.monotonic() - start_s
        result = {
            "model": llm.files.name,
            **({} if config.adapter is None else {"adapter": config.adapter}),
            "file": str(config.file),
            "perplexity": round(found.value, 6),
            "tokens": found.num_tokens,
            "scored_tokens": found.num_scored,
            "context": context,
            "stride": stride,
            "seconds": round(seconds, 3),
            "tokens_per_s": round(found.num_scored / seconds, 1),
        }
    if config.json:
        print_json(result)
    else:
        print_table(("measure", "value"), [(name.replace("_", " "), _shown(value)) for name, value in result.items()])
    return 0


def _drafts(config: Config, text: str) -> int:
    speculation = (
        SpeculationConfig("auto", config.draft_model) if config.draft_model else SpeculationConfig("prediction")
    )
    engine = EngineConfig(config.model, config.cache, config.scheduler, config.parallel, speculation)
    with open_llm(engine) as llm:
        from penstock.assembly.speculation.training import trial_drafter
        from penstock.tools.measure.drafts import measure_drafts

        token_ids = llm.files.tokenizer.encode(text, special=False)[: config.tokens or DEFAULT_CONTEXT]
        others = {name: trial_drafter(llm, name, token_ids) for name in config.drafter}
        found = measure_drafts(llm.engine, token_ids, others)
    best = max(found, key=lambda name: found[name].gain)
    columns = ("drafter", "acceptance", "tokens a step", "times as fast")
    rows = [
        (name, f"{one.acceptance:.3f}", f"{one.tokens_per_step:.2f}", f"{one.gain:.2f}") for name, one in found.items()
    ]
    if config.json:
        values = {name: one._asdict() | {"gain": round(one.gain, 3)} for name, one in found.items()}
        print_json({"drafters": values, "best": best if found[best].gain > WORTHWHILE else "off"})
        return 0
    print_table(columns, rows)
    print(verdict(best, found[best].gain, best if best in config.drafter else "auto"))
    return 0


def verdict(best: str, gain: float, flag: str) -> str:
    """What to serve with, by the best drafter of a trial."""
    if gain <= WORTHWHILE:
        return (
            f"use --speculate off: no drafter pays on this text; the best, {best}, is {gain:.2f} times as fast as none"
        )
    return f"use --speculate {flag}: {best} gains most on this text, {gain:.2f} times as fast"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {file}: it is not UTF-8 text") from error
