"""Drafters that compute: a draft model of the same vocabulary, heads on the target's states.

All on the target's device. Whatever cannot guess for the model that is served is refused before it is loaded.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from penstock.amounts import format_bytes
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.draft.drafter import Drafter
from penstock.runtime.draft.drafters.heads import DraftHeads, HeadDrafter
from penstock.runtime.draft.drafters.model import ModelDrafter
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.heads.load import make_heads, open_heads
from penstock.runtime.execution.heads.mtp import MtpHeads, load_mtp
from penstock.runtime.execution.heads.states import StateSource, StateStore
from penstock.runtime.execution.heads.target import head_target
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.files import ModelFiles
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.sizing import Sizing
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

MAX_ROWS = 4
"""Generations that are drafted for at once: with more of them the target's own steps are full."""
MAX_VOCABULARY = 1 << 16
"""Tokens that a draft model chooses among on a CPU: of Qwen's 151,936 these are 98 in 100 of code and 97 of prose."""
PROBES = ("The quick brown fox", "def main(args):\n    return 0\n", " 12,345.67", "žluťoučký kůň, 你好", "\t\t{}\r\n")
KV_BYTES = 2.0
"""Of a number in its cache."""
STRIDE = 61
"""Of the token ids that are compared one by one."""


class Drafting(NamedTuple):
    """Who guesses by computing, and where the target's steps are to leave their hidden states for it."""

    drafter: Drafter | None = None
    states: StateStore | None = None


def draft_config(config: EngineConfig, name: str) -> EngineConfig:
    """What the draft model is loaded with: everything as the target, but whole and without a draft of its own."""
    model, cache = replace(config.model, model=name, max_context=None), replace(config.cache, long_context="full")
    return EngineConfig(model, cache, config.scheduler)


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


def make_head_drafter(
    network: object, config: EngineConfig, files: ModelFiles | None, free_bytes: int, source: StateSource | None = None
) -> Drafting:
    """Heads on the states of a loaded model: those its runner is to leave in a store, or those of a source."""
    kind, folder = config.speculation.drafter or "", Path(config.speculation.draft_folder or "")
    if not isinstance(network, NativeDecoder | Decoder):
        raise ConfigError(f"--speculate {kind} needs a model that generates, in one process")
    store = StateStore(network.spec.hidden_size, network.device)
    heads: DraftHeads
    if kind == "mtp":
        heads = _own_heads(network, files, store)
    else:
        fingerprint = None if files is None else files.fingerprint
        opened = open_heads(kind, folder, network.spec, fingerprint, free_bytes)
        heads = make_heads(kind, opened, network.spec, head_target(network), source or store)
    return Drafting(HeadDrafter(heads, time.monotonic), store)


def _own_heads(network: NativeDecoder | Decoder, files: ModelFiles | None, store: StateStore) -> MtpHeads:
    if files is None or not files.model.mtp or isinstance(network, NativeDecoder):
        raise ConfigError(
            "--speculate mtp needs a checkpoint with a layer for it, as DeepSeek V3's has; choose another drafter"
        )
    layer = load_mtp(network, files.model.mtp, files.checkpoint)
    return MtpHeads(layer, network.spec, head_target(network), store)


def draft_bytes(config: EngineConfig, target: ModelSpec, draft: ModelFiles) -> int:
    """What a draft model takes of the memory that the cache is sized by: weights as they are in its file, and the keys and
    values of the generations it follows."""
    context = min(config.model.max_context or target.max_context, draft.spec.max_context)
    num_tokens = _num_rows(config) * -(-context // config.cache.block_size) * config.cache.block_size
    size = draft.path.stat().st_size if draft.path.is_file() else 2 * draft.spec.num_parameters
    return size + num_tokens * draft.spec.kv_bytes_per_token(KV_BYTES)


def _num_rows(config: EngineConfig) -> int:
    return min(MAX_ROWS, config.scheduler.max_sequences)


def make_drafter(network: object, config: EngineConfig, sizing: Sizing, target_vocab_size: int) -> ModelDrafter:
    """A drafter over a loaded model."""
    if not isinstance(network, NativeDecoder | Decoder):
        raise ConfigError(f"{config.speculation.draft_model} cannot draft: it generates no text")
    if any(group.kind == "state" for group in network.spec.cache_groups):
        raise ConfigError(
            f"--draft-model {config.speculation.draft_model} keeps states, and a draft model reads on from anywhere; choose "
            "one of keys and values"
        )
    max_context = min(sizing.max_context, network.spec.max_context)
    num_rows = _num_rows(config)
    num_blocks = num_rows * -(-max_context // sizing.block_size)
    drafts = network.with_vocabulary(MAX_VOCABULARY) if isinstance(network, NativeDecoder) else network
    runner = make_runner(drafts, RunnerShape(num_blocks, sizing.block_size, num_rows, max_context))
    return ModelDrafter(
        runner,
        num_rows=num_rows,
        max_context=max_context,
        block_size=sizing.block_size,
        vocab_size=target_vocab_size,
        clock=time.monotonic,
    )
