"""Decode steps of a packed model on a CPU, with and without adapters, by turns: 8 streams over none, 1, 4 and 8 adapters.

    python -m benchmarks.cpu.adapters [--model default] [--rank 8] [--turns 6]

Adapters are of random numbers on all linears. Figures are shares of the base's tokens a second, median over turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from penstock import LLM, SamplingParams
from penstock.runtime.formats.safetensors_out import write_safetensors
from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec

STREAMS, TOKENS = 8, 48


def write(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Path:
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    if not isinstance(mlp, GatedMLP) or not isinstance(attention, GQA):
        raise SystemExit("choose a dense model")
    hidden = spec.hidden_size
    shapes = {
        "self_attn.q_proj": (attention.q_size, hidden),
        "self_attn.k_proj": (attention.kv_size, hidden),
        "self_attn.v_proj": (attention.kv_size, hidden),
        "self_attn.o_proj": (hidden, attention.q_size),
        "mlp.gate_proj": (mlp.width, hidden),
        "mlp.up_proj": (mlp.width, hidden),
        "mlp.down_proj": (hidden, mlp.width),
    }
    drawn = np.random.default_rng(seed).standard_normal(max(rows + columns for rows, columns in shapes.values()) * rank)
    numbers = drawn.astype(np.float16)
    tensors = {}
    for layer in range(spec.num_layers):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            a, b = numbers[: rank * columns], numbers[rank * columns : rank * (columns + rows)]
            tensors[f"{name}.lora_A.weight"] = np.roll(a, layer).reshape(rank, columns) * np.float16(columns**-0.5)
            tensors[f"{name}.lora_B.weight"] = np.roll(b, layer).reshape(rows, rank) * np.float16(0.02)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    asked = parser.parse_args()
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as scratch:
        with LLM(asked.model, max_context=512) as llm:
            spec = llm.spec
        adapters = {f"a{n}": write(Path(scratch) / f"a{n}", spec, asked.rank, n) for n in range(8)}
        cases = {0: [""] * STREAMS, **{count: [f"a{n % count}" for n in range(STREAMS)] for count in (1, 4, 8)}}
        with LLM(asked.model, adapters=adapters, max_context=512, speculate="off", prefix_caching=False) as llm:
            prompts = [[5 + n, 9, 31, 12 + n] for n in range(STREAMS)]
            shares: dict[int, list[float]] = {count: [] for count in cases}
            for turn in range(asked.turns + 1):
                seconds = {}
                for count, names in cases.items():
                    begin_s = time.process_time()
                    llm.generate(prompts, params, adapter=names)
                    seconds[count] = time.process_time() - begin_s
                if turn:
                    for count in cases:
                        shares[count].append(seconds[0] / seconds[count])
    for count, found in shares.items():
        print(f"{count} adapters of rank {asked.rank}: {statistics.median(found):.3f} of base", flush=True)


if __name__ == "__main__":
    main()
