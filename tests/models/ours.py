"""Our side of the comparison: a checkpoint opened, read and run through the layers over a paged cache."""

import json
from pathlib import Path
from typing import Any

import torch

from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.formats.quants import dequantize_rows
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.reading.positions import FACTOR_TENSORS
from penstock.runtime.models.registry import RegisteredModel, read_config, read_gguf
from penstock.runtime.ops.layout import BatchLayout, StateLayout

CPU = torch.device("cpu")
BLOCK_SIZE = 16


def read_model(path: Path, checkpoint: Checkpoint, config: dict[str, Any] | None = None) -> RegisteredModel:
    if isinstance(checkpoint, GgufFile):
        present = [name for name in FACTOR_TENSORS if name in checkpoint.names]
        factors = {name: dequantize_rows(checkpoint.tensor(name), slice(0, 1))[0].tolist() for name in present}
        return read_gguf(checkpoint.metadata, checkpoint.names, factors)
    return read_config(config or json.loads((path / "config.json").read_text()), checkpoint.names)


class Ours:
    """One sequence at a time, in blocks that lie in reverse order."""

    def __init__(self, path: Path, context: int, config: dict[str, Any] | None = None) -> None:
        checkpoint = open_checkpoint(path)
        model = read_model(path, checkpoint, config)
        self.spec = model.spec
        self.module = load_model(model.spec, model.recipes, checkpoint, CPU, torch.float32)
        self.rotations = Rotations(self.spec, context, CPU)
        num_blocks = -(-context // BLOCK_SIZE)
        self.table = torch.arange(num_blocks).flip(0)
        self.caches = (
            KVCache(self.spec, num_blocks, BLOCK_SIZE, torch.float32, CPU, num_states=1).layers
            if self.spec.generates
            else []
        )

    def logits(self, token_ids: list[int], start: int) -> torch.Tensor:
        """Of a chunk whose first token stands at `start`."""
        assert isinstance(self.module, Decoder)
        hidden = self.module(torch.tensor(token_ids), self._step(start, len(token_ids)))
        return self.module.logits(hidden)

    def encode(self, token_ids: list[int]) -> torch.Tensor:
        assert isinstance(self.module, Encoder)
        return self.module.encode(torch.tensor(token_ids), self._step(0, len(token_ids)))[0]

    def greedy(self, prompt: list[int], split: int, num_steps: int) -> tuple[list[int], torch.Tensor]:
        """Prompt and answer, and the logits of every position; the prompt comes in two chunks."""
        tokens = list(prompt)
        logits = [self.logits(prompt[:split], 0), self.logits(prompt[split:], split)]
        for _ in range(num_steps):
            tokens.append(int(logits[-1][-1].argmax()))
            logits.append(self.logits(tokens[-1:], len(tokens) - 1))
        return tokens, torch.cat(logits)

    def _step(self, start: int, length: int) -> Step:
        end = start + length
        positions = torch.arange(start, end)
        slots = self.table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        layout = BatchLayout(
            positions=positions,
            slots=slots,
            block_tables=self.table[None].int(),
            query_starts=torch.tensor([0, length], dtype=torch.int32),
            context_lengths=torch.tensor([end], dtype=torch.int32),
            lengths=[length],
            contexts=[end],
        )
        states = StateLayout(torch.tensor([0 if start else -1]), torch.tensor([0]))
        return Step(layout, self.rotations.at(positions), self.caches, states=states)
