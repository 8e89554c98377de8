"""What a client can cost: every attack of a table against a running server, without a key and with one.

    python -m benchmarks.edge.attacks [--tree CHECKOUT] [--replicas 2] [--only NAME,...] [--seconds 4] [--json FILE]

Each attack gets a fresh server, runs in a process of its own for some seconds, and is let go of. Meanwhile /livez is asked
sixty times a second and another key's client asks for short answers. Told are the bytes sent, the CPU seconds they cost, the
percentiles of /livez, and memory before, at its peak and after, of all processes and of the first (a router, with --replicas).
`--tree` attacks the server of another checkout.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.edge.served import KEYS, NUM_PROBES, PROBE_S, Served, Watch, ask, percentile_ms, post, serving
from benchmarks.edge.weapons import ATTACKS, Attacker

ROOT = Path(__file__).parents[2]
MODEL = "default"
WARM_UP = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "stream": True}),
    ("/tokenize", {"prompt": "word " * 2000}),
    ("/detokenize", {"tokens": [1] * 2000}),
)


def attack(served: Served, name: str, seconds: float) -> "asyncio.Task[dict]":
    """In a process of its own: what it does must not slow the watch."""

    async def run() -> dict:
        words = [sys.executable, "-m", "benchmarks.edge.attacks", "--attack", name, "--seconds", str(seconds)]
        process = await asyncio.create_subprocess_exec(
            *words, f"--address={served.host}:{served.port}", cwd=ROOT, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate()
        return json.loads(printed)

    return asyncio.create_task(run())


async def watched(served: Served, name: str, seconds: float) -> dict:
    for path, body in WARM_UP * 2:
        await ask(served.host, served.port, post(path, json.dumps(body).encode(), KEYS[1]))
    await asyncio.sleep(1.0)
    before_mib, before_s, first_mib = served.resident_mib, served.cpu_s, served.first_mib
    watch = Watch(served)
    probes = [watch.probe(number * PROBE_S / NUM_PROBES) for number in range(NUM_PROBES)]
    watchers = [asyncio.create_task(one) for one in (*probes, watch.look(), watch.be_polite())]
    told = await attack(served, name, seconds)
    num_during = len(watch.lives_s)
    await watch.settle()
    watch.is_over = True
    for watcher in watchers:
        watcher.cancel()
    await asyncio.sleep(0.5)
    after_mib = served.resident_mib
    return {
        "attack": name,
        "key": ATTACKS[name].has_key,
        **told,
        "cpu_s": round(served.cpu_s - before_s, 2),
        "livez_p50_ms": percentile_ms(watch.lives_s[:num_during] or watch.lives_s, 0.5),
        "livez_p99_ms": percentile_ms(watch.lives_s, 0.99),
        "livez_max_ms": percentile_ms(watch.lives_s, 1.0),
        "polite_p95_ms": percentile_ms(watch.polite_s, 0.95),
        "polite": dict(watch.polite),
        "mib_before": round(before_mib),
        "mib_peak": round(watch.peak_mib),
        "mib_after": round(after_mib),
        "memory_ratio": round(after_mib / before_mib, 3),
        "first_mib": [round(first_mib), round(watch.first_peak_mib), round(served.first_mib)],
    }


def run_attack(name: str, address: str, seconds: float) -> None:
    host, port = address.rsplit(":", 1)
    attacker = Attacker(host, int(port), KEYS[0] if ATTACKS[name].has_key else "", seconds)
    start_s = time.monotonic()
    asyncio.run(attacker.run(ATTACKS[name].method))
    told = {
        "sent_bytes": attacker.num_bytes,
        "seconds": round(time.monotonic() - start_s, 2),
        "answers": dict(sorted(attacker.answers.items())),
    }
    print(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is attacked")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--replicas", type=int, default=1, help="attack the router of so many replicas")
    parser.add_argument("--only", default="", help="names of attacks, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each attack lasts")
    parser.add_argument(
        "--json", type=Path, help="file to keep the figures in; those of the same tree and attack are replaced"
    )
    parser.add_argument("--label", default="", help="what the figures are kept under")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if arguments.attack:
        run_attack(arguments.attack, arguments.address, arguments.seconds)
        return
    label = arguments.label or commit_of(arguments.tree)
    names = arguments.only.split(",") if arguments.only else list(ATTACKS)
    if unknown := sorted(set(names) - set(ATTACKS)):
        parser.error(f"there is no attack named {unknown[0]!r}; choose from {', '.join(ATTACKS)}")
    for name in names:
        flags = ["--num-blocks", "1024"]
        if arguments.replicas > 1:
            flags += ["--replicas", str(arguments.replicas)]
        with serving(arguments.tree, arguments.model, *flags) as served:
            figures = asyncio.run(watched(served, name, arguments.seconds))
        print(json.dumps(figures), flush=True)
        if arguments.json:
            keep(arguments.json, label, figures)


def keep(path: Path, label: str, figures: dict) -> None:
    record = json.loads(path.read_text()) if path.exists() else {"benchmark": "edge attacks", "trees": {}}
    record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    record["trees"].setdefault(label, {})[figures["attack"]] = figures
    path.write_text(json.dumps(record, indent=1) + "\n")


def commit_of(tree: Path) -> str:
    words = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
