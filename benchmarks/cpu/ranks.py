"""Ranks on one machine's CPU: against one process, what an exchange takes, what a lost rank costs, whose tokens they give.

    python benchmarks/cpu/ranks.py turns       W1 to W3 of workloads.py, one process and two ranks by turns on all processors
    python benchmarks/cpu/ranks.py exchanges   microseconds of a sum over two processes, shared memory and gloo
    python benchmarks/cpu/ranks.py faults      a served answer while a rank is killed, and while one is stopped: seconds lost
    python benchmarks/cpu/ranks.py tokens      200 prompts, greedy: how many answers are those of one process, by layout

    [--model default ...] [--layouts tensor=2 pipeline=2 tensor=2,pipeline=2] [--dtype auto float32] [--turns 3] [--out FILE]

An answer that differs is told with the logprob by which one process preferred its token to the next best where they part: a
tie falls either way.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from workloads import Bench

from penstock import LLM, SamplingParams

STAGES = ("all ranks start anew", "the engine ended", "the engine is back")
"""What the log says of a recovery."""
TEXTS = ("The capital of France is", "def fib(n):", "Water is made of", "Once upon a time, in a land far away,")
PROMPTS = [f"{text} {number}" for number in range(50) for text in TEXTS]
WORKLOADS = ("w1", "w2", "w3")


def turns(asked: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for model in asked.model:
        for dtype in asked.dtype:
            found.append({"model": Path(model).name, "dtype": dtype, **_by_turns(model, dtype, asked.turns)})
    return found


def _by_turns(model: str, dtype: str, num_turns: int) -> dict[str, Any]:
    rates: dict[str, dict[str, list[float]]] = {name: {"one": [], "ranks": []} for name in WORKLOADS}
    settings: dict[str, Any] = {"dtype": dtype, "max_context": 1024, "max_sequences": 32, "speculate": "off"}
    with LLM(model, **settings) as one, LLM(model, tensor=2, **settings) as ranks:
        for turn in range(num_turns):
            for name in WORKLOADS:
                for who, llm in (("one", one), ("ranks", ranks)):
                    (rate,) = getattr(Bench(llm, seed=turn), name)().values()
                    rates[name][who].append(round(rate, 1))
    best = {name: {who: max(each) for who, each in both.items()} for name, both in rates.items()}
    ratios = {name: round(both["ranks"] / both["one"], 3) for name, both in best.items()}
    return {"tokens_per_s": best, "ratio": ratios, "all": rates}


def exchanges(asked: argparse.Namespace) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "penstock.runtime.execution.parallel.machine.timing", "cpu"]
    lines = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return [
        {"through": each["through"], "us": {str(size): round(1e6 * seconds, 1) for size, seconds in each["timed"]}}
        for each in found
    ]


def faults(asked: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for model in asked.model:
        words = [
            sys.executable,
            "-m",
            "penstock",
            "serve",
            model,
            "--port",
            "0",
            "--tensor",
            "2",
            "--max-context",
            "512",
        ]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        told: list[tuple[float, str]] = []
        threading.Thread(target=_listen, args=(server.stderr, told), daemon=True).start()
        try:
            assert server.stdout is not None
            banner = iter(server.stdout)
            url = next(match.group() for line in banner if (match := re.search(r"http://[^/\s]+", line)))
            right, _, _ = _answer(url, server.pid, None)
            for number in (signal.SIGKILL, signal.SIGSTOP):
                text, lost_s, signal_s = _answer(url, server.pid, number)
                parts = [(round(at_s - signal_s, 2), line) for at_s, line in told if at_s > signal_s]
                found.append(
                    {
                        "model": Path(model).name,
                        "signal": number.name,
                        "seconds_without_a_token": round(lost_s, 2),
                        "same_text": text == right,
                        "parts": [part for part in parts if any(word in part[1] for word in STAGES)],
                    }
                )
        finally:
            server.terminate()
            server.wait(60)
    return found


def _listen(lines: Iterable[str] | None, told: list[tuple[float, str]]) -> None:
    for line in lines or ():
        told.append((time.monotonic(), line.strip()))


def _answer(url: str, pid: int, number: signal.Signals | None) -> tuple[str, float, float]:
    """A streamed text, the longest gap after a signal was sent to a rank in the middle of it, and when that was."""
    body = {"model": "default", "prompt": TEXTS[3], "max_tokens": 48, "temperature": 0, "stream": True}
    pieces: list[str] = []
    gap_s = last_s = signal_s = 0.0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300.0) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            if len(pieces) >= 5:
                gap_s = max(gap_s, now - last_s)
            last_s = now
            pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
            if len(pieces) == 5 and number is not None:
                os.kill(_rank_of(pid), number)
                last_s = signal_s = time.monotonic()
    return "".join(pieces), gap_s, signal_s


def _rank_of(server: int) -> int:
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    children = {row[0] for row in rows if row[1] == str(server)}
    return next(int(row[0]) for row in rows if row[1] in children and "rank_worker" in row[2])


def tokens(asked: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for model in asked.model:
        for dtype in asked.dtype:
            one = _answers(model, dtype, {})
            for layout in asked.layouts:
                counts = {name: int(count) for name, count in (part.split("=") for part in layout.split(","))}
                ranks = _answers(model, dtype, counts)
                apart = [_margin(mine, theirs) for mine, theirs in zip(one, ranks) if mine[0] != theirs[0]]
                row = {"model": Path(model).name, "dtype": dtype, "layout": layout, "prompts": len(one)}
                found.append(row | {"equal": len(one) - len(apart), "margins": sorted(apart, reverse=True)})
                print(json.dumps(found[-1]), flush=True)
    return found


Answer = tuple[list[int], list[float]]
"""Tokens, and by how much each was preferred to the next best."""


def _answers(model: str, dtype: str, layout: dict[str, int]) -> list[Answer]:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2)
    with LLM(model, dtype=dtype, max_context=512, max_batch_tokens=256, **layout) as llm:  # type: ignore[arg-type]
        choices = [completion.choices[0] for completion in llm.generate(PROMPTS, params)]
    return [(list(each.token_ids), [one.top[0][1] - one.top[1][1] for one in each.logprobs or ()]) for each in choices]


def _margin(one: Answer, ranks: Answer) -> float:
    place = next((i for i, pair in enumerate(zip(one[0], ranks[0])) if pair[0] != pair[1]), len(one[0]) - 1)
    return round(one[1][place], 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("turns", "exchanges", "faults", "tokens"))
    parser.add_argument("--model", nargs="+", default=["default"])
    parser.add_argument("--layouts", nargs="+", default=["tensor=2", "pipeline=2", "tensor=2,pipeline=2"])
    parser.add_argument("--dtype", nargs="+", default=["auto"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = {"turns": turns, "exchanges": exchanges, "faults": faults, "tokens": tokens}[asked.what](asked)
    text = json.dumps({asked.what: found}, indent=1)
    print(text)
    if asked.out is not None:
        kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        asked.out.write_text(json.dumps(kept | {asked.what: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
