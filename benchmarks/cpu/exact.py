"""Answers with every tier and role forced are those of one plain server, bit for bit, whatever is killed or damaged meanwhile.

    python -m benchmarks.cpu.exact [--model default] [--prompts 200] [--faults calm,kills,flipped] [--json FILE]

A prefill and a decode replica with pools that are far too small, host memory and a disk each, and a router that hands every
prompt over. Faults come by real means: SIGKILL, files that are damaged while they are in use, a file system without room (as
root; else that one is left out), a clock that jumps in every process. An answer counts as equal if its tokens and the
logarithms of their probabilities are.
"""

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.gpu.online import START_LIMIT_S, free_port

KEY = secrets.token_urlsafe(18)
HTTP = httpx.Client(headers={"authorization": f"Bearer {KEY}"}, timeout=300.0, verify=False)
ROOT = Path(__file__).parents[2]
NUM_STEMS = 40
STEM, TAIL = 240, 16
"""Characters."""
AT_ONCE = 4
POOL = ("--num-blocks", "64", "--max-context", "512", "--speculate", "off", "--invariant", "--log-level", "warning")
"""Of every server; `--invariant`, since other products round by what runs beside a request, with tiers and without."""
FAULTS = ("calm", "kills", "flipped", "truncated", "swapped", "gone", "clock", "full")
CLOCK = """
import os, time
_time, _file = time.time, os.environ["PENSTOCK_BENCHMARK_JUMPS"]
def jumping():
    now = _time()
    return now + (0, -86400, 7, 31536000, -3)[int(now * 5) % 5] if os.path.exists(_file) else now
time.time = jumping
"""
"""Of every process, while a file is there: by days and years, five times a second."""
COUNTERS = {
    "loaded": r"penstock_kv_tier_blocks_total\{.*loaded.*\}",
    "tier_faults": r"penstock_kv_tier_faults_total\S*",
    "moved": r"penstock_kv_transfer_moved_blocks_total\S*",
    "transfer_faults": r"penstock_kv_transfer_faults_total\{.*\}",
    "restarts": r"penstock_engine_restarts_total\S*",
}


def prompts(count: int) -> list[str]:
    """Beginnings of real text that come again and again, each time with another end."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    stems = [text[number * STEM : (number + 1) * STEM] for number in range(NUM_STEMS)]
    ends = Random(1)
    return [f"{stems[number % NUM_STEMS]}{ends.randbytes(TAIL // 2).hex()}" for number in range(count)]


class Process:
    """A command of penstock at a port of its own, on one core, which can be killed and started again."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str], log: Path, core: int = 0) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "penstock", *words, "--port", str(self.port)]
        self._command = ["taskset", "-c", str(core % (os.cpu_count() or 1)), *command]
        self._environment, self._log = {**os.environ, **environment}, log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as file:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=file, stderr=file, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_engine(self) -> None:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            if b"penstock.assembly.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)

    def get(self, path: str) -> str:
        return HTTP.get(self.url + path, timeout=30.0).text

    def until(self, path: str, words: str, count: int = 1) -> None:
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s:
            try:
                if self.get(path).count(words) >= count:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        sys.exit(f"no {words} at {path} after {START_LIMIT_S:.0f} s:\n{self._log.read_text()[-2000:]}")

    @property
    def counts(self) -> dict[str, float]:
        page = self.get("/metrics")
        return {
            name: sum(map(float, re.findall(rf"^{pattern} (\S+)$", page, re.MULTILINE)))
            for name, pattern in COUNTERS.items()
        }


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for one in processes:
            one.kill()


def ask(url: str, prompt: str) -> Any:
    """What was answered, or how it failed."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    try:
        answer = HTTP.post(f"{url}/v1/completions", json=body | {"return_token_ids": True})
        choice = answer.json()["choices"][0]
        return [choice["token_ids"], choice["logprobs"]["token_logprobs"]]
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def answers(url: str, asked: list[str], on_answer: Callable[[int], None] = lambda count: None) -> list[Any]:
    found: list[Any] = []
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for answer in clients.map(lambda prompt: ask(url, prompt), asked):
            found.append(answer)
            on_answer(len(found))
    return found


class Fleet:
    """Two replicas with roles and tiers, and a router before them."""

    def __init__(self, model: str, folder: Path, disk: Path) -> None:
        (folder / "sitecustomize.py").write_text(CLOCK)
        self.jumps, self.disk = folder / "jumps", disk
        paths = os.pathsep.join([str(folder), str(ROOT)])
        environment = {
            "PENSTOCK_REPLICA_KEY": KEY,
            "PYTHONPATH": paths,
            "PENSTOCK_BENCHMARK_JUMPS": str(self.jumps),
        }
        tiers = ("--kv-host", "8MiB", "--kv-disk", str(disk), "kv-disk-size=256MiB")
        self.replicas = [
            Process(("serve", model, *POOL, *tiers, "--role", role), environment, folder / f"{role}.log", core)
            for core, role in enumerate(("prefill", "decode"))
        ]
        urls = [f"--replica={one.url}" for one in self.replicas]
        flags = ("--handover=always", "--policy=prefix-reported", "probe-s=0.2", "slow-start-s=0", "wait-s=120")
        self.router = Process(("route", *urls, *flags), environment, folder / "router.log")

    @property
    def processes(self) -> list[Process]:
        return [*self.replicas, self.router]

    def settle(self) -> None:
        for one in self.replicas:
            one.until("/readyz", '"ready"')
        self.router.until("/router/replicas", '"role":"', 2)

    @property
    def counts(self) -> dict[str, float]:
        both = [one.counts for one in self.replicas]
        return {name: sum(counts[name] for counts in both) for name in COUNTERS}


class Killer:
    """Kills, one after the other while requests run: the engine and the whole server of each replica."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.kills: list[str] = []
        self.counted = Counter[str]()
        """By servers that are gone, since they started."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        numbers = Random(3)
        while not self._over.wait(numbers.uniform(1.0, 4.0)):
            self._fleet.settle()  # both gone at once is another matter
            index, is_server = len(self.kills) % 2, len(self.kills) % 4 > 1
            one = self._fleet.replicas[index]
            counts = one.counts
            if is_server:
                self.counted.update(counts)
                one.kill()
                one.start()
            else:
                self.counted.update({name: counts[name] for name in COUNTERS if name != "restarts"})
                one.kill_engine()
                while one.counts["restarts"] == counts["restarts"]:
                    time.sleep(0.1)
            self.kills.append(f"{('prefill', 'decode')[index]} {'server' if is_server else 'engine'}")


def damage(folder: Path, fault: str) -> None:
    """What lies on the disk, in place, while engines write and read it."""
    for segment in folder.rglob("*.kv"):
        size = segment.stat().st_size
        if fault == "gone":
            segment.unlink()
        elif fault == "truncated":
            os.truncate(segment, size // 3)
        elif fault == "flipped":
            with segment.open("r+b") as file:
                for place in range(0, size, 20_011):
                    file.seek(place)
                    byte = file.read(1)
                    file.seek(place)
                    file.write(bytes([byte[0] ^ 16]))
        else:
            data = segment.read_bytes()
            with segment.open("r+b") as file:
                file.write(data[size // 2 :] + data[: size // 2])


def fill(folder: Path) -> None:
    """Leave no room on a file system."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


@contextmanager
def file_system(num_mib: int) -> Iterator[Path | None]:
    """A small one of its own; None for those who may not make any."""
    with tempfile.TemporaryDirectory(prefix="penstock-exact-") as folder:
        words = ["mount", "-t", "tmpfs", "-o", f"size={num_mib}m", "tmpfs", folder]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=False)


def judged(fleet: Fleet, fault: str, asked: list[str], right: list[Any]) -> dict[str, Any]:
    """One fault, planted before or while all prompts are asked."""
    fleet.settle()
    before, begun = fleet.counts, time.monotonic()

    def spoil(count: int) -> None:
        if fault in ("flipped", "truncated", "swapped", "gone") and count % 50 == 10:
            damage(fleet.disk, fault)

    if fault == "clock":
        fleet.jumps.touch()
    if fault == "full":
        fill(fleet.disk)
    killer = Killer(fleet) if fault == "kills" else None
    with killer or nullcontext():
        found = answers(fleet.router.url, asked, spoil)
    fleet.jumps.unlink(missing_ok=True)
    (fleet.disk / "ballast").unlink(missing_ok=True)
    fleet.settle()
    after = Counter(fleet.counts)
    if killer is not None:
        after.update(killer.counted)
    lost = [one for one in found if isinstance(one, str)]
    row = {
        "fault": fault,
        "prompts": len(asked),
        "lost": len(lost),
        "wrong": sum(one[0] != best[0] for one, best in zip(found, right) if not isinstance(one, str)),
        "other_logprobs": sum(one[1] != best[1] for one, best in zip(found, right) if not isinstance(one, str)),
        "seconds": round(time.monotonic() - begun, 1),
        "counted": {name: after[name] - before[name] for name in COUNTERS},
    }
    if killer is not None:
        row["kills"] = killer.kills
    return row | ({"first_lost": lost[0]} if lost else {})


def plain_answers(model: str, folder: Path, asked: list[str]) -> list[Any]:
    """Of one server without tiers, peers and router."""
    plain = Process(("serve", model, *POOL, "--api-key", KEY), {}, folder / "plain.log")
    with running(plain):
        plain.until("/readyz", '"ready"')
        right = answers(plain.url, asked)
    failed = [one for one in right if isinstance(one, str)]
    if failed:
        sys.exit(f"a plain server failed: {failed[0]}")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--plain", type=Path, help="answers of the plain server: read if there, else kept there")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # servers end with it
    texts, rows = prompts(asked.prompts), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-exact-")))
        if asked.plain is not None and asked.plain.exists():
            right = json.loads(asked.plain.read_text())
        else:
            right = plain_answers(asked.model, folder, texts)
            if asked.plain is not None:
                asked.plain.write_text(json.dumps(right))
        print(json.dumps({"plain": len(right)}), flush=True)
        disk = stack.enter_context(file_system(300))
        fleet = Fleet(asked.model, folder, disk or folder / "disk")
        stack.enter_context(running(*fleet.processes))
        for fault in asked.faults.split(","):
            if fault == "full" and disk is None:
                print("a file system without room takes root; left out")
                continue
            rows.append(judged(fleet, fault, texts, right))
            print(json.dumps(rows[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(row["lost"] or row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
