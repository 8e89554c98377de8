"""A service on Ray in a process of its own, and load on it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


@dataclass
class Service:
    url: str
    process: "subprocess.Popen[str]"
    errors: Path
    address: str

    def words(self) -> str:
        return self.errors.read_text()

    def await_words(self, pattern: str, count: int = 1) -> None:
        """Until the service has said so, so often."""
        until(lambda: len(re.findall(pattern, self.words())) >= count, lambda: f"{pattern}\n{self.words()}")

    def status(self) -> dict[str, Any]:
        words = [sys.executable, "-m", "penstock", "status", "--address", self.address, "--json"]
        printed = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found

    def server_pids(self) -> list[int]:
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        ours = [line for line in listed.splitlines() if "penstock.cli.fleet.server_process" in line]
        return [int(line.split()[0]) for line in ours]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def until(is_so: Callable[[], bool], words: Callable[[], str]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, words()
        time.sleep(0.2)


@contextmanager
def up(folder: Path, *flags: str, address: str = "local") -> Iterator[Service]:
    errors = folder / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "up", *flags, "--port", "0", "--address", address],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"http://[^:]+:\d+", line)
        assert url, f"{line}{errors.read_text()}"
        yield Service(url.group(), process, errors, "auto" if address == "local" else address)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


async def load(url: str, count: int, in_flight: int, tokens: int) -> list[str]:
    """What went wrong with so many requests, so many at a time."""
    faults: list[str] = []
    turns = asyncio.Semaphore(in_flight)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=httpx.Limits(max_connections=in_flight)) as client:

        async def ask(number: int) -> None:
            settings = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
            body = {"model": "default", "prompt": f"request {number}"} | settings
            async with turns:
                try:
                    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                        lines = [line async for line in answer.aiter_lines() if line]
                    if answer.status_code != 200 or '"finish_reason":"length"' not in "".join(lines[-3:]):
                        faults.append(f"{answer.status_code} {lines[-1][:200]}")
                except httpx.HTTPError as error:
                    faults.append(repr(error))

        await asyncio.gather(*(ask(number) for number in range(count)))
    return faults
