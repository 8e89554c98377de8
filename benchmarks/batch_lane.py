"""Does a running batch slow anybody down? Interactive latency with and without one, by turns; and what the batch gets.

    python -m benchmarks.batch_lane [MODEL] [--turns 5] [--json FILE]

Prints p50 and p95 of TTFT and TPOT, their ratios, and the batch's tokens in each second in which no interactive request is
there, beside what it gets alone. A ratio of p95 up to 1.05 and a share of 0.9 are what the lane promises.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai

NUM_TOKENS = 32
COUNTED = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
WORDS = "water stone wind light road house tree river " * 8


def interactive(sdk: openai.OpenAI, count: int, pause_s: float) -> tuple[list[float], list[float]]:
    ttft, tpot = [], []
    for number in range(count):
        start_s = time.monotonic()
        times = []
        messages: Any = [{"role": "user", "content": f"{time.monotonic_ns()} {number} {WORDS}"}]
        for chunk in sdk.chat.completions.create(
            model="default", messages=messages, max_tokens=NUM_TOKENS, stream=True, extra_body={"ignore_eos": True}
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.monotonic())
        if len(times) > 1:
            ttft.append(times[0] - start_s)
            tpot.append((times[-1] - times[0]) / (len(times) - 1))
        time.sleep(pause_s)
    return ttft, tpot


def begin_batch(sdk: openai.OpenAI, count: int) -> str:
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": f"{time.monotonic_ns()} {number} {WORDS}"}],
                "max_tokens": 64,
                "ignore_eos": True,
            },
        }
        for number in range(count)
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = sdk.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id


def tokens_of(url: str) -> float:
    """Tokens of prompts and answers computed so far."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(COUNTED))


def quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(int(len(values) * fraction), len(values) - 1)]


def compare(seen: dict[bool, tuple[list[float], list[float]]]) -> dict[str, Any]:
    found = {}
    for place, name in enumerate(("ttft_ms", "tpot_ms")):
        for fraction in (0.5, 0.95):
            alone, beside = (round(quantile(seen[has][place], fraction) * 1000, 2) for has in (False, True))
            found[f"{name}_p{fraction * 100:.0f}"] = {
                "alone": alone,
                "beside": beside,
                "ratio": round(beside / alone, 3),
            }
    return found


def run(url: str, options: argparse.Namespace) -> dict[str, Any]:
    sdk = openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=600.0)
    before = tokens_of(url)
    interactive(sdk, 4, 0.0)
    num_prompt = (tokens_of(url) - before) / 4 - NUM_TOKENS
    seen: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
    idle_s = num_batch_tokens = 0.0
    for _ in range(options.turns):
        for has_batch in (False, True):
            batch_id = begin_batch(sdk, options.lines) if has_batch else None
            time.sleep(4.0)
            before, start_s = tokens_of(url), time.monotonic()
            found = interactive(sdk, options.requests, options.pause_s)
            if batch_id is not None:
                wall_s, tokens = time.monotonic() - start_s, tokens_of(url) - before
                idle_s += wall_s - sum(ttft + NUM_TOKENS * tpot for ttft, tpot in zip(*found, strict=True))
                num_batch_tokens += tokens - (num_prompt + NUM_TOKENS) * options.requests
                sdk.batches.cancel(batch_id)
                time.sleep(2.0)
            for all_, some in zip(seen[has_batch], found, strict=True):
                all_.extend(some)
    batch_id = begin_batch(sdk, options.lines)
    time.sleep(6.0)
    before, start_s = tokens_of(url), time.monotonic()
    time.sleep(15.0)
    alone = (tokens_of(url) - before) / (time.monotonic() - start_s)
    beside = num_batch_tokens / idle_s
    return {
        "model": options.model,
        "num_requests": [len(seen[has][0]) for has in (False, True)],
        **compare(seen),
        "batch_tokens_per_s": {"alone": round(alone), "beside": round(beside), "share": round(beside / alone, 3)},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--lines", type=int, default=5_000)
    parser.add_argument("--pause-s", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", options.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = next(found.group() for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        threading.Thread(target=server.stdout.read, daemon=True).start()
        report = json.dumps(run(url, options), indent=1)
        print(report)
        if options.json is not None:
            options.json.write_text(report + "\n")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
