"""Latent attention of a decode step against its byte floor: DeepSeek-V2-Lite's shapes, 32 sequences of 4,096 tokens.

    python benchmarks/gpu/mla.py [--device cuda] [--sequences 32] [--context 4096]

The floor is the time in which the device reads every latent once. Without a kernel the definition is timed, which says so.
"""

import argparse
import statistics
import time

import torch

from penstock.runtime.models import catalog
from penstock.runtime.models.spec import MLA
from penstock.runtime.ops.kinds.latent import latent_attention
from penstock.runtime.ops.layout import BatchLayout, LatentCache

BLOCK_SIZE = 16
NUM_PASSES = 20


def layout_of(num_sequences: int, context: int, device: torch.device) -> BatchLayout:
    num_blocks = -(-context // BLOCK_SIZE)
    tables = torch.randperm(num_sequences * num_blocks, device=device).view(num_sequences, num_blocks).int()
    positions = torch.full((num_sequences,), context - 1, device=device)
    slots = tables[:, -1].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE
    starts = torch.arange(num_sequences + 1, dtype=torch.int32, device=device)
    contexts = [context] * num_sequences
    lengths = torch.tensor(contexts, dtype=torch.int32, device=device)
    return BatchLayout(positions, slots, tables, starts, lengths, [1] * num_sequences, contexts)


def waited(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    device = torch.device(options.device)
    spec = catalog.find("deepseek-v2-lite").layers[0].attention
    if not isinstance(spec, MLA):
        raise SystemExit("the catalogue has another attention for deepseek-v2-lite")
    layout = layout_of(options.sequences, options.context, device)
    width = spec.kv_values_per_token
    held = torch.randn((layout.block_tables.numel(), BLOCK_SIZE, width), device=device).bfloat16()
    q = torch.randn((options.sequences, spec.num_heads, width), device=device).bfloat16()
    copied = torch.empty_like(held)
    times: dict[str, list[float]] = {"attention": [], "copy": []}
    for _ in range(NUM_PASSES):
        begun = waited(device)
        latent_attention(q, LatentCache(held), layout, spec)
        between = waited(device)
        copied.copy_(held)
        times["attention"].append(between - begun)
        times["copy"].append(waited(device) - between)
    attention_s, copy_s = (statistics.median(times[name]) for name in ("attention", "copy"))
    floor_s = copy_s / 2  # a copy reads and writes; attention reads
    kernels = [kernel.name for kernel in latent_attention.kernels.get(device.type, ())]
    print(f"{held.nbytes / 1e6:.0f} MB of latents; computed by {', '.join(kernels) or 'the definition (no kernel)'}")
    print(f"attention {attention_s * 1e6:,.0f} us, floor {floor_s * 1e6:,.0f} us: {attention_s / floor_s:.2f}x")


if __name__ == "__main__":
    main()
