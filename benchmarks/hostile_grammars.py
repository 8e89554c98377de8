"""Do streams keep their pace while hostile grammars come? Calm and under attack by turns, over HTTP.

    python benchmarks/hostile_grammars.py [--model default] [--streams 32] [--tokens 64] [--turns 3] [--attackers 2]

Attackers send grammars that are too large, too deep, malformed or hard to compile, each as soon as the last was answered.
Prints
gaps between the tokens of the streams in ms, their ratio, and how the attackers were answered.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import httpx

SCHEMAS: list[dict[str, Any]] = [
    {"guided_json": {"enum": list(range(100_000))}},
    {"guided_json": {"properties": {f"p{i}": {} for i in range(5000)}}},
    {"guided_json": {"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(40)]}},
    {"guided_json": {"$ref": "#"}},
    {"guided_json": {"type": "string", "pattern": "((x{100}){100}){100}"}},
    {"guided_json": '{"items":' * 60_000 + "{}" + "}" * 60_000},
    {"guided_regex": "((x{100}){100}){100}"},
    {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    {"guided_regex": "(?=a)b"},
    {"guided_grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
    {"guided_grammar": "start: a\na: b\nb: a"},
    {"guided_json": {"type": "bogus"}},
]


async def stream(http: httpx.AsyncClient, number: int, num_tokens: int) -> list[float]:
    """Gaps between the events of an answer, seconds."""
    body = {
        "prompt": f"Story {number}:",
        "max_tokens": num_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    times: list[float] = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(times)]


async def attack(http: httpx.AsyncClient, over: asyncio.Event, answers: list[tuple[int, float]], first: int) -> None:
    number = first
    while not over.is_set():
        began = time.perf_counter()
        body = {"prompt": "x", "max_tokens": 5} | SCHEMAS[number % len(SCHEMAS)]
        response = await http.post("/v1/completions", json=body)
        answers.append((response.status_code, time.perf_counter() - began))
        number += 1


async def turn(
    http: httpx.AsyncClient, options: argparse.Namespace, answers: list[tuple[int, float]] | None
) -> list[float]:
    over = asyncio.Event()
    attackers = [
        asyncio.create_task(attack(http, over, answers, number))
        for number in range(options.attackers if answers is not None else 0)
        if answers is not None
    ]
    gaps = await asyncio.gather(*(stream(http, number, options.tokens) for number in range(options.streams)))
    over.set()
    await asyncio.gather(*attackers)
    return [gap for each in gaps for gap in each]


def described(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: round(ordered[min(int(place * len(ordered)), len(ordered) - 1)] * 1000, 1)
        for name, place in places.items()
    }


async def measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    calm: list[float] = []
    attacked: list[float] = []
    answers: list[tuple[int, float]] = []
    async with httpx.AsyncClient(base_url=url, timeout=120.0, verify=False) as http:
        await turn(http, options, None)
        for _ in range(options.turns):
            calm += await turn(http, options, None)
            attacked += await turn(http, options, answers)
    quiet, loud = described(calm), described(attacked)
    return {
        "calm_gap_ms": quiet,
        "attacked_gap_ms": loud,
        "ratio": {name: round(loud[name] / quiet[name], 2) for name in quiet},
        "attacks": len(answers),
        "statuses": dict(Counter(status for status, _ in answers)),
        "attack_answer_ms": described([seconds for _, seconds in answers]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--attackers", type=int, default=2)
    options = parser.parse_args()
    words = [sys.executable, "-m", "penstock", "serve", options.model, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            url = ""
            for line in server.stdout:
                if "http://" in line and not url:
                    url = line[line.index("http://") :].split()[0].removesuffix("/v1")
                if "docs:" in line:
                    break
            print(json.dumps(vars(options) | asyncio.run(measure(url, options)), indent=1))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
