"""What `penstock eval` is asked."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.cli.loading import adapter_at
from penstock.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from penstock.fields import setting


@dataclass(frozen=True, slots=True)
class Config:
    """Measure a model on a text or on questions.

    Perplexity: how many tokens, on average, the model hesitates between; lower is better. Compare it between models only where
    they share a tokenizer. With --reference also how far its predictions are from another model's: KL divergence in nats, how
    often both hold the same token to be the likeliest.

    Tasks: questions with choices, or with exact answers. FILE is JSON lines (HellaSwag, ARC, PIQA, WinoGrande, GSM8K, or
    prompt, choices and answer), or a suite that is fetched: mmlu, humaneval.

    Drafts: how often each drafter guesses the text's next tokens, and how much faster it would have been generated here.
    """

    measure: Literal["perplexity", "tasks", "drafts"] = field(metadata={"positional": True})
    """What to measure"""
    file: Path = field(metadata={"positional": True})
    """Text to measure on, or questions"""
    model: ModelConfig = field(default_factory=ModelConfig)
    context: int | None = None
    """Tokens a window holds (default: 1024, or what the model takes)"""
    stride: int | None = setting(None)
    """Tokens a window moves on; the others are seen again, not scored (default: half the context)"""
    tokens: int | None = None
    """Measure on this many tokens (of questions: this many) from the beginning only"""
    adapter: str | None = field(default=None, metadata={"metavar": "[NAME=]PATH"})
    """Adapter to lay over the model: a PEFT directory or a GGUF adapter"""
    reference: str | None = None
    """Model to compare predictions with, or a file that --save-logits wrote"""
    activations: Literal["served", "int8", "q8"] = "served"
    """Round what matrices are multiplied with as W8A8 engines do (int8, by token) or as llama.cpp does (q8, blocks of 32)"""
    save_logits: Path | None = None
    """File to keep this model's predictions in, as a --reference for others"""
    draft_model: str | None = None
    """Smaller model to try as a drafter too"""
    drafter: tuple[str, ...] = setting(())
    """Drafters to try beside those without files, as --speculate names them: medusa:DIR, eagle:DIR, self or self:DIR"""
    json: bool = False
    """Print JSON for machines"""
    cache: CacheConfig = field(default_factory=lambda: CacheConfig(prefix_caching=False))
    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_sequences=16))
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


def engine_config(config: Config, model: ModelConfig) -> EngineConfig:
    adapters, _ = adapter_at(config.adapter)
    return EngineConfig(model, config.cache, config.scheduler, config.parallel, adapter=adapters)
