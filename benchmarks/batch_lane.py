"""Does a running batch slow anybody down? Interactive latency with and without one, by turns; and what the batch gets.

    python benchmarks/batch_lane.py [MODEL] [--turns 5]

Prints p50 and p95 of TTFT and TPOT, their ratios, and the batch's tokens a second while interactive requests pause, beside what
it gets alone. A ratio of p95 up to 1.05 and a share of 0.9 are what the lane promises.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import threading
import time
from typing import Any

import openai

WORDS = "water stone wind light road house tree river " * 8


def interactive(sdk: openai.OpenAI, count: int, pause_s: float) -> tuple[list[float], list[float]]:
    ttft, tpot = [], []
    for number in range(count):
        start_s = time.monotonic()
        times = []
        messages: Any = [{"role": "user", "content": f"{time.monotonic_ns()} {number} {WORDS}"}]
        for chunk in sdk.chat.completions.create(
            model="default", messages=messages, max_tokens=32, stream=True, extra_body={"ignore_eos": True}
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


def tokens_of(sdk: openai.OpenAI, batch_id: str) -> int:
    usage = sdk.batches.retrieve(batch_id).usage
    return usage.output_tokens if usage is not None else 0


def quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(int(len(values) * fraction), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--pause-s", type=float, default=0.5)
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", options.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = next(found.group() for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        threading.Thread(target=server.stdout.read, daemon=True).start()
        sdk = openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=600.0)
        interactive(sdk, 2, 0.0)
        seen: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
        for _ in range(options.turns):
            for has_batch in (False, True):
                batch_id = begin_batch(sdk, 20_000) if has_batch else None
                time.sleep(2.0)
                found = interactive(sdk, options.requests, options.pause_s)
                for all_, some in zip(seen[has_batch], found, strict=True):
                    all_.extend(some)
                if batch_id is not None:
                    sdk.batches.cancel(batch_id)
                    time.sleep(2.0)
        for place, name in enumerate(("TTFT", "TPOT")):
            for fraction in (0.5, 0.95):
                alone, beside = (quantile(seen[has][place], fraction) * 1000 for has in (False, True))
                print(
                    f"{name} p{fraction * 100:.0f}: {alone:.1f} ms alone, {beside:.1f} ms beside a batch, {beside / alone:.3f}"
                )
        batch_id = begin_batch(sdk, 20_000)
        time.sleep(3.0)
        before, start_s = tokens_of(sdk, batch_id), time.monotonic()
        time.sleep(15.0)
        print(f"batch alone: {(tokens_of(sdk, batch_id) - before) / (time.monotonic() - start_s):.0f} tokens a second")
        print(f"requests measured: {len(seen[False][0])} and {len(seen[True][0])}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
