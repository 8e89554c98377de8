"""Five workloads on a CPU through the offline engine: prefill, one stream, a full batch, a shared prefix, eight clients.

    python benchmarks/cpu/workloads.py [--model default] [--threads N] [--repeats 3] [--only W1 W2] [--out record.json]

Greedy, end-of-text ignored, random token ids, a fresh seed for each run so that the prefix cache starts cold.

    W1  prefill of 512 tokens                             tokens/s
    W2  128 tokens after 64, one sequence                 tokens/s
    W3  64 requests of 256 + 128, at most 32 at once      output tokens/s
    W4  64 requests, 512 shared + 32 own + 32 out         seconds
    W5  8 clients at once, 256 + 128                      output tokens/s, TTFT and TPOT

Compare only figures of one quiet machine, interleaved with those they are compared with.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

BEGIN = time.monotonic()

import torch  # noqa: E402

from penstock import LLM  # noqa: E402
from penstock.offline.speed import Figures, SpeedTest  # noqa: E402


class Bench(SpeedTest):
    def w4(self) -> Figures:
        shared = self.ids(512)
        seconds, _ = self.timed([shared + self.ids(32) for _ in range(64)], 32)
        return {"seconds": seconds}

    def w5(self) -> Figures:
        seconds, every = self.timed([self.ids(256) for _ in range(8)], 128)
        first = sorted(times[0] for times in every)
        each = sorted((times[-1] - times[0]) / (len(times) - 1) for times in every)
        return {
            "output_tokens_per_s": 8 * 128 / seconds,
            "ttft_p50_ms": statistics.median(first) * 1e3,
            "ttft_p99_ms": first[-1] * 1e3,
            "tpot_p50_ms": statistics.median(each) * 1e3,
        }


def peak_memory_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def medians(runs: list[Figures]) -> Figures:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU workloads")
    parser.add_argument("--model", default="default")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["W1", "W2", "W3", "W4", "W5"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-blocks", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    llm = LLM(args.model, dtype=args.dtype, max_sequences=32, num_blocks=args.num_blocks, speculate="off")
    bench = Bench(llm, random.SystemRandom().randrange(2**31))
    bench.timed([bench.ids(8)], 1)
    record = {
        "start_to_first_token_s": round(time.monotonic() - BEGIN, 2),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "runner": type(llm.loaded.network).__name__,
    }
    workloads: dict[str, Callable[[], Figures]] = {
        "W1": bench.w1, "W2": bench.w2, "W3": bench.w3, "W4": bench.w4, "W5": bench.w5,
    }  # fmt: skip
    runs: dict[str, list[Figures]] = {name: [] for name in args.only}
    for _ in range(args.repeats):
        for name in args.only:
            runs[name].append(workloads[name]())
    figures = {name: medians(each) for name, each in runs.items()}
    record |= {"peak_memory_mb": round(peak_memory_mb()), "medians": figures, "runs": runs}
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")
    for name, value in record.items():
        if name not in ("medians", "runs"):
            print(f"{name:24} {value}")
    for name, each in figures.items():
        print(f"{name:24} " + "  ".join(f"{key} {value:,.1f}" for key, value in each.items()))


if __name__ == "__main__":
    main()
