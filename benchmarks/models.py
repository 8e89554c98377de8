"""Several models in less memory than they take together: random requests, what they cost, and what the memory comes to.

    python benchmarks/models.py NAME=MODEL NAME=MODEL ... [--memory 2GiB] [--requests 60] [--clients 2] [--json FILE]

Each model is first served alone: its answers there are the right ones. Then all are behind one server, at most `--memory` of
them loaded at a time, and clients ask for one by lot. Told: wrong answers, the most that all engines held at a moment, loads
and evictions, and the time to the first token of a model that was loaded and of one that was not, and how soon whoever waited
was told of the load.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

TEXTS = [
    f"Question {number}: what is the colour of the {word}?" for number, word in enumerate(["sky", "sea", "sun", "sand"])
]
NUM_TOKENS = 16


class Served(NamedTuple):
    url: str
    pid: int


class Asked(NamedTuple):
    model: str
    answer: str
    ttft_s: float
    load_s: float
    """How long it waited for its model."""
    first_progress_s: float | None
    num_progress: int


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--port", "0", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        url = ""
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://[^/]+", line)
            url = url or (found.group() if found else "")
            if "docs:" in line:
                break
        yield Served(url, process.pid)
    finally:
        process.terminate()
        process.wait()


def ask(url: str, model: str, text: str, *, is_vector: bool) -> Asked:
    with httpx.Client(base_url=url, timeout=300.0, verify=False) as http:
        start_s = time.monotonic()
        if is_vector:
            answer = http.post("/api/embed", json={"model": model, "input": text})
            answer.raise_for_status()
            body = answer.json()
            numbers = " ".join(f"{number:.4f}" for number in body["embeddings"][0][:8])
            return Asked(model, numbers, time.monotonic() - start_s, body["load_duration"] / 1e9, None, 0)
        return _stream(http, model, text, start_s)


def _stream(http: httpx.Client, model: str, text: str, start_s: float) -> Asked:
    body = {"model": model, "prompt": text, "raw": True, "include_progress": True}
    body |= {"options": {"temperature": 0, "num_predict": NUM_TOKENS}}
    words, ttft_s, load_s, told = "", 0.0, 0.0, []
    with http.stream("POST", "/api/generate", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            part = json.loads(line)
            if "error" in part:
                raise RuntimeError(part["error"])
            if "progress" in part:
                told.append(time.monotonic() - start_s)
                continue
            words += part.get("response", "")
            ttft_s = ttft_s or time.monotonic() - start_s
            load_s = part.get("load_duration", 0) / 1e9
    return Asked(model, words, ttft_s, load_s if load_s > 0.05 else 0.0, told[0] if told else None, len(told))


def held_bytes(pid: int) -> int:
    """What the engines of a server hold now."""
    total = 0
    try:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"assembly.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                total += int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        pass
    return total


class Watch(threading.Thread):
    """The most that was held at a moment."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._pid = pid
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            self.most = max(self.most, held_bytes(self._pid))

    def stop(self) -> int:
        self._is_over.set()
        self.join()
        return self.most


def right_answers(names: dict[str, str], flags: Sequence[str]) -> tuple[dict[tuple[str, str], str], set[str]]:
    """What each model says alone, and which of them make vectors."""
    right, vectors = {}, set()
    for name, source in names.items():
        with serving(source, *flags) as one:
            listed = httpx.get(one.url + "/v1/models").json()["data"][0]
            if "completion" not in listed["capabilities"]:
                vectors.add(name)
            for text in TEXTS:
                right[name, text] = ask(one.url, "default", text, is_vector=name in vectors).answer
    return right, vectors


def metric(page: str, name: str, labels: str = "") -> float:
    found = re.findall(rf"^{re.escape(name)}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def spread(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"count": 0}
    return {"count": len(values), "median_s": statistics.median(values), "max_s": max(values)}


def measure(names: dict[str, str], memory: str, num_requests: int, num_clients: int, seed: int) -> dict[str, Any]:
    right, vectors = right_answers(names, ())
    flags = [word for name, source in names.items() for word in ("--model", f"{name}={source}")]
    draw = random.Random(seed)
    jobs = [(draw.choice(list(names)), draw.choice(TEXTS)) for _ in range(num_requests)]
    with serving(*flags, "--models-memory", memory) as server:
        watch = Watch(server.pid)
        watch.start()
        with ThreadPoolExecutor(num_clients) as threads:
            asked = list(threads.map(lambda job: ask(server.url, *job, is_vector=job[0] in vectors), jobs))
        most = watch.stop()
        page = httpx.get(server.url + "/metrics").text
        models = httpx.get(server.url + "/app/v1/models").json()
    wrong = sum(one.answer != right[job] for one, job in zip(asked, jobs, strict=True))
    told = [one.first_progress_s for one in asked if one.first_progress_s is not None]
    return {
        "models": names,
        "allowed_bytes": models["budget_bytes"],
        "most_held_bytes": most,
        "requests": num_requests,
        "clients": num_clients,
        "wrong": wrong,
        "evictions": metric(page, "penstock_model_evictions_total"),
        "first_progress": spread(told),
        "by_model": {name: _by_model(name, asked, page, models) for name in names},
    }


def _by_model(name: str, asked: Sequence[Asked], page: str, models: dict[str, Any]) -> dict[str, Any]:
    mine = [one for one in asked if one.model == name]
    loads = metric(page, "penstock_model_loads_total", f'model_name="{name}"')
    seconds = metric(page, "penstock_model_load_seconds_sum", f'model_name="{name}"')
    return {
        "counted_bytes": next(one["num_bytes"] for one in models["models"] if one["name"] == name),
        "loads": loads,
        "mean_load_s": seconds / loads if loads else None,
        "ttft_loaded": spread([one.ttft_s for one in mine if not one.load_s]),
        "ttft_cold": spread([one.ttft_s for one in mine if one.load_s]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    names = dict(word.split("=", 1) for word in asked.model)
    found = measure(names, asked.memory, asked.requests, asked.clients, asked.seed)
    found["models"] = {name: Path(source).name for name, source in names.items()}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n")
    return 1 if found["wrong"] or found["most_held_bytes"] > found["allowed_bytes"] else 0


if __name__ == "__main__":
    sys.exit(main())
