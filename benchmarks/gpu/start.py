"""From the start of a process to its first tokens, imports included, with weights made up on the device.

    python -m benchmarks.gpu.start [--models qwen3-0.6b,llama-3.1-8b] [--json FILE]

Twice for each model: with nothing compiled, and with what the first process left. On a machine that has just been started the
very first process also reads everything from disk, and where packages came without Python's bytecode (which installing
them makes) every process makes it anew.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

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
    print(llm.loaded.device.name, flush=True)


def timed(model: str, cache: str) -> dict[str, float | str]:
    """Seconds from before the process is made until it says each word; the last one is the device's name."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.gpu.start", "--child", model]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    times: dict[str, list[float]] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            times.setdefault(line.strip(), []).append(time.perf_counter() - begun)
    if process.returncode:
        sys.exit(f"a start of {model} failed")
    tokens = times["token"]
    return {
        "device": list(times)[-1],
        "imported_s": times["imported"][0],
        "ready_s": times["ready"][0],
        "first_token_s": tokens[0],
        "second_token_s": tokens[1],
        "last_token_s": tokens[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen3-0.6b,llama-3.1-8b")
    parser.add_argument("--json")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    record: dict[str, dict[str, dict[str, float | str]]] = {}
    for model in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            record[model] = {name: timed(model, cache) for name in ("first", "second")}
        for name, times in record[model].items():
            reported = [f"{what} {took:.2f}" for what, took in times.items() if isinstance(took, float)]
            print(model, name, *reported, sep="  ", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            versions = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "triton")}}
            json.dump({**versions, "prompt_tokens": NUM_IN, "answer_tokens": NUM_OUT, "starts": record}, file, indent=2)


if __name__ == "__main__":
    main()
