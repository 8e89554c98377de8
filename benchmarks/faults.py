"""Faults planted in a live server by real means: does `penstock doctor URL` name each of them first?

    python -m benchmarks.faults [--model default] [--faults throttled,neighbours] [--window-s 5] [--out FILE]

A quota of a cgroup, loops that take the processors, settings that are too small, a killed and a stopped engine, prompts that
begin with the time, clients that do not read, that have no key, that send what cannot be served. The machine should be quiet:
what others do to it is told, too.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from penstock.cli.doctor import Config, Patient
from penstock.console.show import print_table
from penstock.metrics.page import parse_page, sum_of
from penstock.tools.doctor.finding import Finding
from penstock.tools.doctor.rule import diagnose
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import signs_of

KEY = "a-key-of-this-benchmark"
GROUP = Path("/sys/fs/cgroup/cpu/penstock-faults")
ADDRESS = re.compile(r"http://[^\s/]+")
WARM_S, START_S, UNREAD_S = 2.0, 120.0, 60.0


@dataclass
class Server:
    url: str
    process: "subprocess.Popen[str]"

    @property
    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        named = [
            int(one) for one in children if b"penstock.assembly.worker" in Path(f"/proc/{one}/cmdline").read_bytes()
        ]
        return named[0]

    @property
    def num_running(self) -> float:
        request = urllib.request.Request(f"{self.url}/metrics", headers={"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return sum_of(parse_page(answer.read().decode()), "vllm:num_requests_running") or 0.0

    def ask(self, body: dict[str, Any], key: str = KEY) -> int:
        """The status of one answer, read to its end."""
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60.0) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0


@contextmanager
def serving(model: str, flags: tuple[str, ...], enter: Callable[[], None] | None) -> Iterator[Server]:
    command = [sys.executable, "-m", "penstock", "serve", model, "--port", "0", "--no-tuned", "--api-key", KEY]
    process = subprocess.Popen(
        [*command, "--log-level", "warning", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=enter,
    )
    try:
        found = next((one for line in process.stdout or () if (one := ADDRESS.search(line))), None)
        if found is None:
            raise SystemExit(f"a server with {flags} did not start")
        server = Server(found[0], process)
        end_s = time.monotonic() + START_S
        while server.ask({"prompt": [5, 6], "max_tokens": 1}) != 200 and time.monotonic() < end_s:
            time.sleep(0.2)
        yield server
    finally:
        with contextlib.suppress(OSError):
            os.kill(server.engine_pid, signal.SIGCONT)
        process.terminate()
        process.wait(60.0)


def tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(1000, 20000) for _ in range(count)]


@contextmanager
def users(server: Server, count: int, body: Callable[[Random], dict[str, Any]], key: str = KEY) -> Iterator[None]:
    """So many who ask again once answered."""
    over = threading.Event()

    def go_on(number: int) -> None:
        random = Random(number)
        while not over.is_set():
            if server.ask(body(random), key) not in (200, 503):
                over.wait(0.3)

    threads = [threading.Thread(target=go_on, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def unread(server: Server, count: int) -> Iterator[None]:
    """Clients that ask for more than sockets hold, and read nothing of it."""
    asked = {"prompt": [5, 6, 7], "max_tokens": 100, "n": 4, "logprobs": 5, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(1.0)
        end_s = time.monotonic() + UNREAD_S
        while server.num_running and time.monotonic() < end_s:
            time.sleep(0.5)
        yield


@contextmanager
def loops(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def chat(random: Random) -> dict[str, Any]:
    return {"prompt": tokens(random, 40), "max_tokens": 40, "ignore_eos": True}


def long_prompt(random: Random) -> dict[str, Any]:
    return {"prompt": tokens(random, 900), "max_tokens": 4, "ignore_eos": True}


DOCUMENT = tokens(Random("document"), 900)


def stamped(random: Random) -> dict[str, Any]:
    """One document every time, behind the time of day."""
    return {"prompt": [*tokens(random, 6), *DOCUMENT], "max_tokens": 4, "ignore_eos": True}


def into_group() -> None:
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


@dataclass(frozen=True)
class Fault:
    """`names` are the rules that speak of it; `load` is there while the doctor looks, `plant` happens in between."""

    names: tuple[str, ...]
    load: Callable[[Server], contextlib.AbstractContextManager[None]]
    flags: tuple[str, ...] = ()
    plant: Callable[[Server], None] = lambda server: None
    enter: Callable[[], None] | None = None


def both(server: Server) -> contextlib.AbstractContextManager[None]:
    stack = ExitStack()
    stack.enter_context(users(server, 2, chat))
    stack.enter_context(loops(2))
    return stack  # type: ignore[return-value]


def crowd(server: Server) -> contextlib.AbstractContextManager[None]:
    return users(server, 4, chat)


FAULTS: dict[str, Fault] = {
    "quota of a cgroup": Fault(("throttled",), crowd, enter=into_group),
    "processors taken by loops": Fault(("neighbours",), both),
    "steps of 32 tokens": Fault(
        ("small-steps",),
        lambda server: users(server, 1, long_prompt),
        ("--max-batch-tokens", "32", "--max-sequences", "8"),
    ),
    "prompts that begin with the time": Fault(("cache-misses",), lambda server: users(server, 1, stamped)),
    "clients that do not read": Fault(("slow-readers",), lambda server: unread(server, 8)),
    "a cache of 40 blocks": Fault(
        ("kv-full", "preempting"),
        lambda server: users(server, 8, lambda random: chat(random) | {"max_tokens": 200}),
        ("--num-blocks", "40", "--max-context", "512"),
    ),
    "32-bit weights": Fault(("wide-weights",), lambda server: users(server, 1, chat), ("--dtype", "float32")),
    "one sequence at a time": Fault(("sequence-limit", "queue-long"), crowd, ("--max-sequences", "1")),
    "four may wait": Fault(
        ("refusing",), lambda server: users(server, 16, chat), ("--max-waiting", "4", "--max-sequences", "2")
    ),
    "a killed engine": Fault(
        ("engine-restarting", "engine-restarted", "not-ready"),
        crowd,
        plant=lambda server: os.kill(server.engine_pid, signal.SIGKILL),
    ),
    "a stopped engine": Fault(
        ("stuck", "not-ready", "engine-restarting", "engine-down"),
        crowd,
        plant=lambda server: os.kill(server.engine_pid, signal.SIGSTOP),
    ),
    "clients without a key": Fault(("locked-out",), lambda server: users(server, 2, chat, key="another")),
    "prompts beyond the context": Fault(
        ("bad-requests",),
        lambda server: users(server, 2, lambda random: chat(random) | {"max_tokens": 10**6}),
    ),
    "nothing": Fault(("",), lambda server: users(server, 1, chat)),
}
"""The last is no fault: a healthy server is told nothing."""


@contextmanager
def quota(milliseconds: int) -> Iterator[None]:
    """Of every 100, what a group of processes may compute."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.cfs_quota_us").write_text(str(1000 * milliseconds))
    try:
        yield
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                GROUP.rmdir()
                break
            time.sleep(0.1)


def visit(model: str, fault: Fault, window_s: float) -> tuple[Finding, ...]:
    with ExitStack() as stack:
        if fault.enter is not None:
            stack.enter_context(quota(60))
        server = stack.enter_context(serving(model, fault.flags, fault.enter))
        stack.enter_context(fault.load(server))
        time.sleep(WARM_S)
        doctor = Patient(Config(url=server.url, api_key=KEY))
        before, before_s = doctor.look(), time.monotonic()
        fault.plant(server)
        time.sleep(window_s)
        return diagnose(signs_of(before, doctor.look(), time.monotonic() - before_s), RULES).findings


def main() -> int:
    parser = argparse.ArgumentParser(description="planted faults, and what the doctor names first")
    parser.add_argument("--model", default="default")
    parser.add_argument("--faults", default="", help="only those whose name has one of these words in it")
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    chosen = [name for name in FAULTS if any(word in name for word in args.faults.split(","))]
    found: dict[str, Any] = json.loads(args.out.read_text())["faults"] if args.out and args.out.exists() else {}
    for name in chosen:
        findings = visit(args.model, FAULTS[name], args.window_s)
        first = findings[0].id if findings else ""
        is_named = first in FAULTS[name].names
        found[name] = {"is_named": is_named, "first": first, "others": [one.id for one in findings[1:]]}
        evidence = findings[0].evidence if findings else ""
        print(f"{'named' if is_named else 'MISSED'}: {name}: {first or 'nothing is wrong'}: {evidence}", flush=True)
        if args.out is not None:
            record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "faults": found}
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    rows = [(name, one["first"], ", ".join(one["others"])) for name, one in found.items()]
    print_table(("planted", "named first", "beside it"), rows)
    return 0 if all(one["is_named"] for one in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
