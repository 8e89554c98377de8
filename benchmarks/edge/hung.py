"""How long a stream stands still when its engine hangs and another replica is free.

    python -m benchmarks.edge.hung [--tree CHECKOUT] [--model default] [--times 5] [--json FILE]

`serve --replicas 2` with default settings. The engine that answers is stopped (SIGSTOP) in the middle of a stream; told is the
longest time between two of its parts, and whether the text is that of an undisturbed stream. Then the engine goes on.
"""

import argparse
import json
import os
import platform
import signal
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.edge.attacks import commit_of
from benchmarks.edge.served import KEYS, Served, serving

ROOT = Path(__file__).parents[2]
BODY = {"prompt": "Once upon a time", "max_tokens": 800, "temperature": 0, "ignore_eos": True, "stream": True}
STOP_AT = 10
"""Parts of the answer that come before its engine is stopped."""


def engines(served: Served) -> dict[int, float]:
    """Processes of engines, with the processor time each has had."""
    pids = [pid for pid in served.pids if b"assembly.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return {pid: sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) for pid in pids}


def stream(served: Served, *, stops: bool) -> tuple[str, float]:
    """A text, and the longest wait for a part of it after its engine was stopped."""
    text, gap_s, stopped, before = "", 0.0, 0, engines(served)
    headers = {"authorization": f"Bearer {KEYS[1]}"}
    url = f"http://{served.host}:{served.port}/v1/completions"
    try:
        with httpx.stream("POST", url, json=BODY, headers=headers, timeout=120.0) as answer:
            last_s = time.monotonic()
            for number, line in enumerate(one for one in answer.iter_lines() if one.startswith("data: {")):
                now = time.monotonic()
                gap_s, last_s = max(gap_s, now - last_s) if stopped else 0.0, now
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if stops and number == STOP_AT:
                    after = engines(served)
                    stopped = max(after, key=lambda pid: after[pid] - before.get(pid, 0.0))
                    os.kill(stopped, signal.SIGSTOP)
    finally:
        if stopped:
            os.kill(stopped, signal.SIGCONT)
    return text, gap_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose service is measured")
    parser.add_argument("--model", default="default")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with serving(arguments.tree, arguments.model, "--replicas", "2") as served:
        stream(served, stops=False)
        right, _ = stream(served, stops=False)
        found: dict[str, Any] = {"gaps_s": [], "same_text": 0}
        for _ in range(arguments.times):
            text, gap_s = stream(served, stops=True)
            found["gaps_s"].append(round(gap_s, 2))
            found["same_text"] += text == right
            time.sleep(3.0)  # until the router has seen that the engine is back
    print(json.dumps(found), flush=True)
    if arguments.json:
        record = {"benchmark": "hung engine", "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        arguments.json.write_text(json.dumps({**record, "commit": commit_of(arguments.tree), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
