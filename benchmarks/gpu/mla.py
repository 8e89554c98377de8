"""Latent attention of a decode step against its byte floor: DeepSeek-V2-Lite's shapes, 32 sequences of 4,096 tokens.

    python -m benchmarks.gpu.mla [--step] [--sequences 32] [--context 4096] [--model deepseek-v2-lite]

The floor is the time in which the device reads every latent once, at the rate of a copy. What the kernel gives is held to the
definition first; then every way of cutting is timed as a recorded step of several layers, as an engine would replay it.
`--step` times whole steps of an engine instead, beside the bytes of weights, experts and latents that one has to read.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple
from itertools import pairwise, product

import torch

from penstock.runtime.models import catalog
from penstock.runtime.models.spec import MLA
from penstock.runtime.ops.kinds.latent import latent_attention
from penstock.runtime.ops.layout import BatchLayout, LatentCache

BLOCK_SIZE = 16
NUM_PASSES, NUM_LAYERS = 15, 8
NUM_STEPS = 128


def layout_of(lengths: list[int], contexts: list[int], device: torch.device) -> BatchLayout:
    most = -(-max(contexts) // BLOCK_SIZE)
    tables = torch.randperm(len(contexts) * most, device=device).view(len(contexts), most).int()
    places = [torch.arange(end - length, end, device=device) for length, end in zip(lengths, contexts)]
    slots = [table[at // BLOCK_SIZE].long() * BLOCK_SIZE + at % BLOCK_SIZE for table, at in zip(tables, places)]
    starts = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    ends = torch.tensor(contexts, dtype=torch.int32, device=device)
    return BatchLayout(torch.cat(places), torch.cat(slots), tables, starts, ends, lengths, contexts)


def seconds(run: Callable[[], object]) -> float:
    """Of one of NUM_LAYERS runs that a graph replays."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NUM_LAYERS):
            run()
    times = []
    for _ in range(NUM_PASSES):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) / 1e3 / NUM_LAYERS)
    return statistics.median(times)


def check(spec: MLA, device: torch.device) -> None:
    """The kernel equals the definition, for single queries and for prompts."""
    from penstock.runtime.ops.triton.kinds.latent import attend_latents

    for lengths, contexts in (([1] * 5, [1, 17, 400, 4096, 33]), ([1, 70, 1, 300], [900, 70, 3, 1000])):
        layout = layout_of(lengths, contexts, device)
        width = spec.kv_values_per_token
        held = LatentCache(torch.randn((layout.block_tables.numel(), BLOCK_SIZE, width), device=device).bfloat16())
        q = torch.randn((sum(lengths), spec.num_heads, width), device=device).bfloat16()
        truth = latent_attention.definition(q, held, layout, spec).float()
        error = (attend_latents(q, held, layout, spec).float() - truth).abs().max()
        print(f"chunks {lengths}: largest error {float(error):.4f} of numbers up to {float(truth.abs().max()):.2f}")
        assert float(error) < 0.03 * float(truth.abs().max())


def time_steps(model: str, num_sequences: int, context: int) -> None:
    """Decode steps of an engine, past its prompts; the floor is that of the same read rate in the same run."""
    from benchmarks.gpu.floor import Machine
    from benchmarks.gpu.suite import measure_ceilings, prompts, sampling
    from penstock import LLM

    cost = Machine(model, measure_ceilings(), is_fp8=False).fleet.cost
    floor_s = cost.sum_s(num_sequences, num_sequences * context, ())
    torch.cuda.empty_cache()
    llm = LLM(f"dummy:{model}", max_context=context + NUM_STEPS, prefix_caching=False)
    made = prompts([context - NUM_STEPS // 2] * num_sequences, llm.spec.vocab_size, 1)
    medians = []
    for _ in range(3):
        moments: list[float] = []
        asked = [sampling(NUM_STEPS)] * num_sequences
        llm.generate(made, asked, on_update=lambda update: moments.append(time.perf_counter()))  # noqa: B023
        steps = moments[NUM_STEPS // 3 * num_sequences : NUM_STEPS * 3 // 4 * num_sequences : num_sequences]
        medians.append(statistics.median(after - before for before, after in pairwise(steps)))
    took_s = statistics.median(medians)
    told = f"{took_s * 1e3:.2f} ms a step, floor {floor_s * 1e3:.2f}, {took_s / floor_s:.2f}x"
    print(f"{model}, {num_sequences} x {context}: {told}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--model", default="deepseek-v2-lite")
    options = parser.parse_args()
    if options.step:
        time_steps(options.model, options.sequences, options.context)
        return
    from penstock.runtime.ops.triton.host.tile_table import TileConfig
    from penstock.runtime.ops.triton.kinds.latent import attend_latents, tiles_for

    device = torch.device("cuda")
    spec = catalog.find(options.model).layers[0].attention
    if not isinstance(spec, MLA):
        raise SystemExit(f"{options.model} has no latents")
    check(spec, device)
    layout = layout_of([1] * options.sequences, [options.context] * options.sequences, device)
    width = spec.kv_values_per_token
    held = torch.randn((layout.block_tables.numel(), BLOCK_SIZE, width), device=device).bfloat16()
    q = torch.randn((options.sequences, spec.num_heads, width), device=device).bfloat16()
    copied = torch.empty_like(held)
    floor_s = seconds(lambda: copied.copy_(held)) / 2  # a copy reads and writes; attention reads
    print(f"{options.model}: {held.nbytes / 1e6:.0f} MB of latents, floor {floor_s * 1e6:.1f} us")
    chosen = tiles_for(options.sequences * -(-spec.num_heads // 64), min(spec.num_heads, 64), q)
    ways = [TileConfig(1, *each) for each in product((32, 64), (4, 8), (2, 3, 4), (4, 8, 16))]
    for config in dict.fromkeys((chosen, *ways)):
        try:
            took_s = seconds(lambda config=config: attend_latents(q, LatentCache(held), layout, spec, config))  # type: ignore[misc]
        except Exception as error:  # more shared memory than there is
            print(f"{astuple(config)}: {type(error).__name__}")
            continue
        print(
            f"{astuple(config)}: {took_s * 1e6:.1f} us, {took_s / floor_s:.2f}x{' (chosen)' if config == chosen else ''}"
        )


if __name__ == "__main__":
    main()
