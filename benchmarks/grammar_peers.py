"""The same JSON schemas to several servers, by turns: which are taken, which answers break them, tokens a second.

    PEERS/llama/bin/python benchmarks/grammar_peers.py --serve-llama-cpp model.gguf --port 8081      (pip install xllamacpp)
    python -m benchmarks.grammar_peers --server penstock=http://127.0.0.1:8000 --server llama.cpp=http://127.0.0.1:8081

Every schema is sent to every server as `response_format`, some at a time. An answer that ended by itself counts as a violation
unless `jsonschema` takes it; one that was cut off at its length is only counted.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

CONCURRENCY = 8
MAX_TOKENS = 160


def serve_llama_cpp(model: str, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx, params.port = CONCURRENCY, CONCURRENCY * 1024, port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


async def ask(http: Any, url: str, number: int, schema: dict[str, Any], gate: asyncio.Semaphore) -> tuple[str, int]:
    """How it went, and how many tokens came."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Make something up, in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
        "max_tokens": MAX_TOKENS,
        "temperature": 0.8,
        "seed": number,
    }
    async with gate:
        response = await http.post(f"{url}/v1/chat/completions", json=body)
    if response.status_code != 200:
        return f"refused {response.status_code}", 0
    answer = response.json()
    choice = answer["choices"][0]
    return judged(choice, schema), answer["usage"]["completion_tokens"]


def judged(choice: dict[str, Any], schema: dict[str, Any]) -> str:
    import jsonschema

    if choice["finish_reason"] != "stop":
        return "cut off"
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
    except (ValueError, jsonschema.ValidationError):
        return "violation"
    return "valid"


async def turn(url: str, schemas: list[dict[str, Any]], first: int) -> dict[str, Any]:
    import httpx

    gate = asyncio.Semaphore(CONCURRENCY)
    began = time.perf_counter()
    async with httpx.AsyncClient(timeout=300.0, verify=False) as http:
        asked = [ask(http, url, first + number, schema, gate) for number, schema in enumerate(schemas)]
        answers = await asyncio.gather(*asked)
    seconds = time.perf_counter() - began
    return {
        "outcomes": dict(Counter(outcome for outcome, _ in answers)),
        "tokens_per_s": round(sum(count for _, count in answers) / seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve-llama-cpp", metavar="MODEL")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--schemas", type=int, default=48)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.serve_llama_cpp:
        serve_llama_cpp(options.serve_llama_cpp, options.port)
        return
    from tests.text.grammar.schemas import make_schema

    schemas = [make_schema(seed) for seed in range(5000, 5000 + options.schemas)]
    servers = dict(each.split("=", 1) for each in options.server)
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    for number in range(options.turns):
        for name, url in servers.items():
            turns[name].append(asyncio.run(turn(url, schemas, number * 1000)))
    record = json.dumps({"schemas": len(schemas), "concurrency": CONCURRENCY, "turns": turns}, indent=1)
    print(record)
    if options.json is not None:
        options.json.write_text(record + "\n")


if __name__ == "__main__":
    main()
