"""One replica as actors of Ray: a server's process on whatever node Ray chose, with the ranks it begins there, and on every
further node of the replica the process of that node's ranks.

A process ends with its actor, however that ends: it reads an input whose other end the actor holds.
"""

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import ray

from penstock.service.upstream.ask import is_ready
from penstock.service.upstream.endpoint import Endpoint

COMMAND = (sys.executable, "-m", "penstock.cli.fleet.server_process")
MAX_LINES = 40
LOOK_S = 1.0
STARTED = re.compile(r"started in ([\d.]+) s \((.*)\)")
PART = re.compile(r"(.+?) ([\d.]+) s$")
CONFIG_STATUS = 2


class ServerReport(NamedTuple):
    """What an actor says of its replica."""

    url: str
    is_ready: bool
    status: int | None
    """Exit status of the server, once it has ended."""
    start_s: float
    """From the actor's start to the first readiness; so far, until then."""
    parts: tuple[tuple[str, float], ...]
    """What the start was spent on, in seconds: the process, then what the server says."""
    node: str
    words: str
    """The server's last lines."""


class ReplicaActor:
    """Made by Ray on the node it chose."""

    def __init__(self, config: str, host: str | None = None, num_nodes: int = 1) -> None:
        """`config` is a file of `penstock serve`, as text; it listens on the node's address, or another, on a free port."""
        self._begin_s = time.monotonic()
        self._ready_s: float | None = None
        self._endpoint = _free_endpoint(host or str(ray.util.get_node_ip_address()))
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-replica-"))  # mode 0700
        path = self._folder / "serve.toml"
        path.write_text(config)
        here = self._endpoint.host
        self._rendezvous = _free_endpoint(here).authority
        words = [*COMMAND, "serve", "--config", str(path), "--host", here, "--port", str(self._endpoint.port)]
        self._process = subprocess.Popen(
            [*words, "--rendezvous", self._rendezvous] if num_nodes > 1 else words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, name="lines", daemon=True).start()

    def report(self) -> ServerReport:
        status = self._process.poll()
        answers = status is None and is_ready(self._endpoint.url, timeout_s=LOOK_S)
        now = time.monotonic()
        if answers and self._ready_s is None:
            self._ready_s = now
        return ServerReport(
            url=self._endpoint.url,
            is_ready=answers,
            status=status,
            start_s=(self._ready_s or now) - self._begin_s,
            parts=self._parts(),
            node=self._endpoint.host,
            words="\n".join(self._lines),
        )

    def pid(self) -> int:
        return self._process.pid

    def rendezvous(self) -> str:
        """Where the ranks of the replica's other nodes meet it."""
        return self._rendezvous

    def stop(self, drain_s: float) -> int | None:
        """End the server: it finishes what it answers. None if it did not end in time."""
        self._process.terminate()
        try:
            return self._process.wait(drain_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None

    def _parts(self) -> tuple[tuple[str, float], ...]:
        """The server's own account of its start, and what came before it."""
        found = next((match for line in self._lines if (match := STARTED.search(line))), None)
        if found is None or self._ready_s is None:
            return ()
        parts = [match.groups() for part in found[2].split(", ") if (match := PART.match(part))]
        begun = max(self._ready_s - self._begin_s - float(found[1]), 0.0)
        return (("begin the process", begun), *((name, float(seconds)) for name, seconds in parts))

    def _read(self) -> None:
        if self._process.stdout is not None:
            with contextlib.suppress(ValueError):  # closed under us
                for line in self._process.stdout:
                    self._lines.append(line.rstrip())


class NodeActor:
    """A further node of a replica: its ranks, for as long as the actor lives."""

    def __init__(self, rendezvous: str) -> None:
        here = str(ray.util.get_node_ip_address())
        self._process = subprocess.Popen([*COMMAND, "rank", rendezvous, "--here", here], stdin=subprocess.PIPE)

    def status(self) -> int | None:
        """Exit status of its process, once it has ended."""
        return self._process.poll()


def _free_endpoint(host: str) -> Endpoint:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return Endpoint(host, int(probe.getsockname()[1]), is_tls=False)
