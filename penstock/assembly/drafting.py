"""A draft model beside the one that is served: the same vocabulary, the same device, a runner and KV blocks of its own."""

import time
from dataclasses import replace

from penstock.amounts import format_bytes
from penstock.config import EngineConfig
from penstock.draft.model import DraftRunner, ModelDrafter
from penstock.errors import ConfigError
from penstock.files import ModelFiles
from penstock.layers.decoder import Decoder
from penstock.runtime.eager.runner import ModelRunner
from penstock.runtime.native.decoder import NativeDecoder
from penstock.runtime.native.runner import NativeRunner
from penstock.sizing import Sizing
from penstock.text.tokenizer.tokenizer import Tokenizer

MAX_ROWS = 4
"""Generations that are drafted for at once: with more of them the target's own steps are full."""
PROBES = ("The quick brown fox", "def main(args):\n    return 0\n", " 12,345.67", "žluťoučký kůň, 你好", "\t\t{}\r\n")
STRIDE = 61
"""Of the token ids that are compared one by one."""


def draft_config(config: EngineConfig, name: str) -> EngineConfig:
    """What the draft model is loaded with: everything as the target, but whole and without a draft of its own."""
    return EngineConfig(replace(config.model, model=name, max_context=None), config.cache, config.scheduler)


def check_files(target: ModelFiles | None, draft: ModelFiles, free_bytes: int) -> None:
    """Refuse a model whose tokens mean something else, or that would not fit; before it is loaded."""
    if target is None:
        raise ConfigError("--draft-model needs a target with a tokenizer; dummy weights have none")
    size = draft.path.stat().st_size if draft.path.is_file() else 0
    if size > free_bytes:
        raise ConfigError(
            f"--draft-model {draft.name} takes {format_bytes(size)} but {format_bytes(free_bytes)} are free; "
            "choose a smaller one"
        )
    if not _speak_alike(target.tokenizer, draft.tokenizer, min(target.spec.vocab_size, draft.spec.vocab_size)):
        raise ConfigError(
            f"--draft-model {draft.name} has another vocabulary than {target.name}: their tokens mean different things; "
            "choose a model of the same family"
        )


def _speak_alike(one: Tokenizer, other: Tokenizer, num_tokens: int) -> bool:
    if any(one.encode(text, special=False) != other.encode(text, special=False) for text in PROBES):
        return False
    ids = range(0, num_tokens, STRIDE)
    return all(one.decode([i], skip_special=False) == other.decode([i], skip_special=False) for i in ids)


def make_drafter(
    network: object, config: EngineConfig, sizing: Sizing, target_vocab_size: int, num_rows: int = MAX_ROWS
) -> ModelDrafter:
    """A drafter over a loaded model."""
    if not isinstance(network, NativeDecoder | Decoder):
        raise ConfigError(f"{config.speculation.draft_model} cannot draft: it generates no text")
    max_context = min(sizing.max_context, network.spec.max_context)
    num_rows = min(num_rows, config.scheduler.max_sequences)
    num_blocks = num_rows * -(-max_context // sizing.block_size)
    if isinstance(network, NativeDecoder):
        runner: DraftRunner = NativeRunner(network, num_blocks, sizing.block_size, num_rows, max_context)
    else:
        runner = ModelRunner(network, num_blocks, sizing.block_size, num_rows, max_context)
    return ModelDrafter(
        runner,
        num_rows=num_rows,
        max_context=max_context,
        block_size=sizing.block_size,
        vocab_size=target_vocab_size,
        clock=time.monotonic,
    )
