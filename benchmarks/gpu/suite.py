"""One GPU, whole engine: the workloads of a serving comparison through `LLM.generate`, with made-up weights.

    python benchmarks/gpu/suite.py [--models llama-3.1-8b,qwen3-0.6b] [--json FILE]

Prompts are random tokens; sequences run to their full length; medians where a workload is short enough to repeat. Settings are
what a user of `LLM` gets. How long a start takes is told by `benchmarks.gpu.start`.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable

import torch
import triton

from penstock import LLM, SamplingParams


def prompts(lengths: list[int], vocab_size: int, seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(100, vocab_size - 100) for _ in range(length)] for length in lengths]


def sampling(num_tokens: int, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=temperature, ignore_eos=True)


def timed(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure_ceilings() -> dict[str, float]:
    """Bytes read and copied, and products of large matrices, as fast as the machine does them in this run."""
    numbers = torch.randn(2**31, device="cuda", dtype=torch.bfloat16)
    room = torch.empty_like(numbers)
    left, right = torch.randn((2, 8192, 8192), device="cuda", dtype=torch.bfloat16)
    rows, columns = (side.to(torch.float8_e4m3fn) for side in (left, right))
    ones = torch.ones(8192, device="cuda")

    def multiply_8_bit() -> object:
        return torch._scaled_mm(rows, columns.t(), ones[:, None], ones[None, :], out_dtype=torch.bfloat16)

    def rate(work: float, run: Callable[[], object]) -> float:
        return work / statistics.median([timed(run) for _ in range(8)][2:]) / 1e12

    return {
        "read_tb_s": rate(numbers.nbytes, lambda: numbers.view(torch.int32).max()),
        "copy_tb_s": rate(2 * numbers.nbytes, lambda: room.copy_(numbers)),
        "bf16_tflops": rate(2 * 8192**3, lambda: left @ right),
        "fp8_tflops": rate(2 * 8192**3, multiply_8_bit),
    }


class Suite:
    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.seed = 0

    def run(self, lengths: list[int], samplings: list[SamplingParams]) -> float:
        self.seed += 1
        made = prompts(lengths, self.llm.spec.vocab_size, self.seed)
        return timed(lambda: self.llm.generate(made, samplings))

    def step_ms(self, num_sequences: int, num_in: int, num_out: int, repeats: int = 3) -> float:
        """Time of a decode step: what the answer takes beyond its first token, by the number of steps."""
        lengths = [num_in] * num_sequences
        times = []
        for _ in range(repeats + 1):
            first = self.run(lengths, [sampling(1)] * num_sequences)
            whole = self.run(lengths, [sampling(num_out)] * num_sequences)
            times.append((whole - first) / (num_out - 1) * 1e3)
        return statistics.median(times[1:])

    def prefill_ms(self, num_in: int, repeats: int = 5, rest_s: float = 0.0) -> float:
        """One after the other, or each after a rest: a chip that has just worked hard lowers its clock."""
        times = []
        for _ in range(repeats + 1):
            time.sleep(rest_s)
            times.append(self.run([num_in], [sampling(1)]))
        return statistics.median(times[1:]) * 1e3

    def fixed_s(self, num_sequences: int, num_in: int, num_out: int) -> float:
        return self.run([num_in] * num_sequences, [sampling(num_out)] * num_sequences)

    def random_s(self, num_sequences: int = 256) -> float:
        numbers = random.Random(0)
        ins = [numbers.randint(100, 1024) for _ in range(num_sequences)]
        outs = [numbers.randint(100, 1024) for _ in range(num_sequences)]
        return self.run(ins, [sampling(out, 0.6) for out in outs])


WORKLOADS: dict[str, Callable[[Suite], float]] = {
    "step_ms_1": lambda suite: suite.step_ms(1, 128, 256),
    "step_ms_8": lambda suite: suite.step_ms(8, 128, 128),
    "step_ms_32": lambda suite: suite.step_ms(32, 128, 128),
    "step_ms_128": lambda suite: suite.step_ms(128, 128, 128),
    "prefill_4000_ms": lambda suite: suite.prefill_ms(4000),
    "prefill_4000_rested_ms": lambda suite: suite.prefill_ms(4000, rest_s=1.0),
    "256x(512+128)_s": lambda suite: min(suite.fixed_s(256, 512, 128) for _ in range(3)),
    "256_random_s": lambda suite: min(suite.random_s() for _ in range(2)),
}


def measure(model: str, settings: dict[str, object], workloads: list[str]) -> dict[str, float]:
    llm = LLM(f"dummy:{model}", max_context=4096, prefix_caching=False, **settings)
    results = {"step_tokens": float(llm.sizing.max_batch_tokens)}
    suite = Suite(llm)
    suite.run([128], [sampling(2)])
    for name in workloads:
        results[name] = WORKLOADS[name](suite)
        print(f"{model} {name} {results[name]:.3f}", flush=True)
    results |= ledger(llm)
    llm.close()
    return results


def ledger(llm: LLM) -> dict[str, float]:
    """Where the memory went, in GiB: what was set aside at start, and the most that was ever taken beside weights and cache."""
    sizing = llm.sizing
    beside = torch.cuda.max_memory_allocated() - sizing.weight_bytes - sizing.kv_bytes
    parts = {"weights": sizing.weight_bytes, "cache": sizing.kv_bytes, "set_aside": sizing.workspace_bytes}
    return {f"{name}_gib": number / 2**30 for name, number in {**parts, "beside": beside}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-3.1-8b,qwen3-0.6b")
    parser.add_argument("--fp8", action="store_true", help="8-bit weights and cache")
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--chunk", type=int, help="most tokens a step, instead of what a user gets")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    settings: dict[str, object] = {"weights": "fp8", "kv": "fp8"} if arguments.fp8 else {}
    settings["max_batch_tokens"] = arguments.chunk
    ceilings = measure_ceilings()
    print({name: round(value, 2) for name, value in ceilings.items()}, flush=True)
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "chunk": arguments.chunk,
        "fp8": arguments.fp8,
        "ceilings": ceilings,
        "results": {model: measure(model, settings, arguments.only) for model in arguments.models.split(",")},
    }
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
