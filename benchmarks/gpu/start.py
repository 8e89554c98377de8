"""From the start of a process to its first tokens, imports included, with weights made up on the device.

    python -m benchmarks.gpu.start [--models qwen3-0.6b,llama-3.1-8b] [--json FILE]

Twice for each model: with nothing compiled, and with what the first process left. On a machine that has just been started the
very first process also reads everything from disk.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

NUM_IN, NUM_OUT = 128, 64


def child(model: str) -> None:
    """Tells on standard output when it has come how far."""
    from penstock import LLM, SamplingParams

    print("imported", flush=True)
    llm = LLM(f"dummy:{model}", max_context=4096, prefix_caching=False)
    print("ready", flush=True)
    numbers = random.Random(1)
    prompt = [numbers.randrange(100, llm.spec.vocab_size - 100) for _ in range(NUM_IN)]
    params = SamplingParams(max_tokens=NUM_OUT, temperature=0.0, ignore_eos=True)
    llm.generate([prompt], params, on_update=lambda update: print("token", flush=True))


def timed(model: str, cache: str) -> dict[str, float]:
    """Seconds from before the process is made until it says each word."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.gpu.start", "--child", model]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    times: dict[str, list[float]] = {"imported": [], "ready": [], "token": []}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            times.setdefault(line.strip(), []).append(time.perf_counter() - begun)
    if process.returncode:
        sys.exit(f"a start of {model} failed")
    tokens = times["token"]
    told = {"imported_s": times["imported"][0], "ready_s": times["ready"][0], "first_token_s": tokens[0]}
    return told | {"second_token_s": tokens[1], "last_token_s": tokens[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen3-0.6b,llama-3.1-8b")
    parser.add_argument("--json")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    record: dict[str, dict[str, dict[str, float]]] = {}
    for model in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            record[model] = {name: timed(model, cache) for name in ("first", "second")}
        for name, times in record[model].items():
            print(model, name, {what: round(took, 2) for what, took in times.items()}, flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"prompt_tokens": NUM_IN, "answer_tokens": NUM_OUT, "starts": record}, file, indent=2)


if __name__ == "__main__":
    main()
