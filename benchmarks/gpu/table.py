"""Recorded figures beside the goals, vLLM 0.26 on the same kind of machine, and what the machine itself allows.

    python -m benchmarks.gpu.table RECORD.json...

A record is what `suite --json` writes.
"""

import json
import sys
from pathlib import Path

from benchmarks.gpu.floor import FLOORS, Machine

WORKLOADS = (
    "step_ms_1",
    "step_ms_8",
    "step_ms_32",
    "step_ms_128",
    "256x(512+128)_s",
    "256_random_s",
    "prefill_4000_ms",
    "prefill_4000_rested_ms",
)
PEER = {
    "llama-3.1-8b": (4.93, 5.02, 5.44, 7.24, 4.89, 14.70, 94.2, 94.2),
    "llama-3.1-8b fp8": (3.56, 3.57, 4.55, 5.78, 3.37, 11.44, 63.9, 63.9),
    "qwen3-0.6b": (2.44, 2.50, 2.81, 4.52, 1.37, 6.36, 28.6, 28.6),
    "qwen3-30b-a3b": (4.09, 9.10, 15.59, 18.61, 6.30, 23.66, 102.7, 102.7),
}
GOALS = {
    "llama-3.1-8b": (4.2, None, 4.8, 6.2, 4.3, 12.0, 92.0, 92.0),
    "llama-3.1-8b fp8": (2.8, None, None, 5.0, None, 9.5, 62.0, 62.0),
    "qwen3-0.6b": (1.0, None, 1.3, 2.2, 0.95, 4.2, 25.0, 25.0),
    "qwen3-30b-a3b": (3.0, None, 11.0, None, None, 19.0, None, None),
}


def main() -> None:
    print(f"{'':18} {'workload':22} {'penstock':>9} {'goal':>7} {'vLLM':>7} {'ratio':>6} {'floor':>7}")
    for path in sys.argv[1:]:
        record = json.loads(Path(path).read_text())
        for model, results in record["results"].items():
            name = f"{model} fp8" if record["fp8"] else model
            machine = Machine(model, record["ceilings"], is_fp8=record["fp8"])
            for workload, peer, goal in zip(WORKLOADS, PEER[name], GOALS[name]):
                if workload in results:
                    floor = FLOORS[workload](machine)
                    mine, asked = results[workload], "-" if goal is None else f"{goal:g}"
                    print(f"{name:18} {workload:22} {mine:9.3f} {asked:>7} {peer:7.2f} {peer / mine:6.2f} {floor:7.2f}")


if __name__ == "__main__":
    main()
