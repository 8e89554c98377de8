"""Penstock and other engines on the same workloads in one run, by turns; medians and ratios.

    python benchmarks/cpu/peers.py --rounds 3 --out record.json \
        --engine penstock=.venv/bin/python=model.gguf --engine llama.cpp=PEERS/llama/bin/python=model.gguf \
        --engine vllm=PEERS/vllm/bin/python=DIRECTORY

Each engine lives in an environment of its own and is named with that environment's Python and with the model it takes.
W1, W2, W3 and eight are tokens a second, W4 is seconds; `ratio` is Penstock's figure over the best other one, turned around
for W4 so that more than 1 is ahead.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

PEER = Path(__file__).parent / "peer.py"
ALONE = ("llama.cpp", "llama.cpp plain")
"""Engines that take part with one sequence only."""
SECONDS = ("W4", "peak_mb")
"""Less is better."""


def measure(engine: str, python: str, model: str, workloads: list[str]) -> dict[str, float]:
    wanted = [name for name in workloads if engine not in ALONE or name in ("W1", "W2")]
    environment = os.environ | {
        "PYTHONPATH": str(PEER.parent.parent.parent) if engine.startswith("penstock") else "",
        # vLLM: a bounded cache, and no second process beside the one that computes.
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    command = [python, str(PEER), engine, model, "--only", *wanted]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{engine} failed:\n{ran.stderr[-2000:]}")
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {line["workload"]: line["value"] for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU workloads, engines by turns")
    parser.add_argument("--engine", action="append", required=True, metavar="NAME=PYTHON=MODEL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["W1", "W2", "eight", "W4", "W3"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    engines = [tuple(each.split("=", 2)) for each in args.engine]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in engines}
    for _ in range(args.rounds):
        for name, python, model in engines:
            runs[name].append(measure(name, python, model, args.only))
            print(f"{name:18} " + "  ".join(f"{key} {value:,.1f}" for key, value in runs[name][-1].items()), flush=True)
        record = summarize(runs, args.only)
        if args.out:
            args.out.write_text(json.dumps(record, indent=2) + "\n")  # a run cut short has told what it knows
    for name, each in record["medians"].items():
        print(f"median {name:18} " + "  ".join(f"{key} {value:,.1f}" for key, value in each.items()))
    for name, each in record["ratio_to_best_peer"].items():
        print(f"ratio  {name:18} " + "  ".join(f"{key} {value:.2f}" for key, value in each.items()))


def summarize(runs: dict[str, list[dict[str, float]]], workloads: list[str]) -> dict[str, Any]:
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]} for name, each in runs.items()
    }
    ours = [name for name in medians if name.startswith("penstock")]
    ratios: dict[str, dict[str, float]] = {name: {} for name in ours}
    for key in workloads:
        others = [each[key] for name, each in medians.items() if name not in ours and key in each]
        for name in ours if others else []:
            mine = medians[name][key]
            ratios[name][key] = min(others) / mine if key in SECONDS else mine / max(others)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "rounds": len(next(iter(runs.values()))),
        "medians": medians,
        "ratio_to_best_peer": ratios,
        "runs": runs,
    }


if __name__ == "__main__":
    main()
