"""What keeping weights, or keys and values, in 8 bits costs: perplexity of a real model on a real text.

    python -m benchmarks.precision MODEL TEXT [--tokens 4096] [--context 512] [--device cpu]

The text is read in windows of `context` tokens, each window's second half scored, in pieces as short as a prompt's chunks, so
that most keys are read back from the cache.
"""

import argparse
import math
from pathlib import Path

import torch

from penstock.assembly.engine import load
from penstock.config import configure
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.layout import BatchLayout

BLOCK_SIZE = 16
PIECE = 64
CACHES = {"as computed": None, "float8": torch.float8_e4m3fn, "int8": torch.int8}


def layout_of(start: int, end: int, num_blocks: int, device: torch.device) -> BatchLayout:
    positions = torch.arange(start, end, device=device)
    return BatchLayout(
        positions=positions,
        slots=positions,
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device)[None],
        query_starts=torch.tensor([0, end - start], dtype=torch.int32, device=device),
        context_lengths=torch.tensor([end], dtype=torch.int32, device=device),
        lengths=[end - start],
        contexts=[end],
    )


@torch.inference_mode()
def surprise(model: Decoder, tokens: torch.Tensor, cache_dtype: torch.dtype) -> float:
    """The sum of -log p over the second half of one window."""
    context, num_blocks, device = len(tokens), -(-len(tokens) // BLOCK_SIZE), tokens.device
    cache = KVCache(model.spec, num_blocks, BLOCK_SIZE, cache_dtype, device)
    rotations = Rotations(model.spec, context, device)
    total = 0.0
    for start in range(0, context, PIECE):
        end = min(start + PIECE, context)
        layout = layout_of(start, end, num_blocks, device)
        hidden = model(tokens[start:end], Step(layout, rotations.at(layout.positions), cache.layers))
        targets = tokens[start + 1 : end + 1]
        if start >= context // 2:
            scores = torch.log_softmax(model.logits(hidden[: len(targets)]), dim=-1)
            total -= float(scores.gather(1, targets[:, None]).double().sum())
    return total


def perplexity(model: Decoder, windows: list[torch.Tensor], cache_dtype: torch.dtype | None) -> float:
    kept = cache_dtype or model.embedding.weight.dtype
    num_scored = sum(len(window) - len(window) // 2 // PIECE * PIECE - 1 for window in windows)
    return math.exp(sum(surprise(model, window, kept) for window in windows) / num_scored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    dtype = "float32" if arguments.device == "cpu" else "bfloat16"
    loaded = load(configure(model=arguments.model, dtype=dtype, device=arguments.device))
    model, files = loaded.network, loaded.files
    if files is None or not isinstance(model, Decoder):
        parser.error("choose a model that generates text and has files")
    ids = files.tokenizer.encode(arguments.text.read_text()[: arguments.tokens * 8], special=False)
    tokens = torch.tensor(ids[: arguments.tokens], device=loaded.device.torch_device)
    windows = [window for window in tokens.split(arguments.context) if len(window) == arguments.context]
    print(f"{files.name}, {len(windows)} windows of {arguments.context} tokens")
    for weights in ("as loaded", "float8"):
        if weights == "float8":
            quantize_fp8(model)
        for name, cache_dtype in CACHES.items():
            print(
                f"weights {weights:9}  cache {name:11}  perplexity {perplexity(model, windows, cache_dtype):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
