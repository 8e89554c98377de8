"""Real servers behind a real router, all of them processes, as people start them."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.machine import PATIENCE_S
from tests.server.serving import ROOT, Server, serving


class Wire:
    """A way to a server that can be cut: every connection on it is reset at once, as when a machine dies."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for side in (side for pair in pairs for side in pair):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # nobody listens there any more
                    near.close()
                    continue
                self._pairs.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


@dataclass
class Service:
    url: str
    process: "subprocess.Popen[str]"
    servers: list[Server]
    errors: Path
    wires: list[Wire] = field(default_factory=list)

    def http(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, verify=False, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE_S)

    def metric(self, name: str) -> float:
        with self.http() as http:
            found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", http.get("/metrics").text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0


def started_together(stack: ExitStack, contexts: Sequence[AbstractContextManager[Server]]) -> list[Server]:
    """Servers that start side by side, and end with the stack."""
    with ThreadPoolExecutor(len(contexts)) as threads:
        return list(threads.map(stack.enter_context, contexts))


@contextmanager
def service(
    *flags: str, num_replicas: int = 2, model: str = "oracle:step_ms=5", **environment: str
) -> Iterator[Service]:
    with ExitStack() as stack:
        servers = started_together(stack, [serving(model=model) for _ in range(num_replicas)])
        wires = [Wire(int(server.url.rpartition(":")[2])) for server in servers]
        for wire in wires:
            stack.callback(wire.close)
        replicas = [word for wire in wires for word in ("--replica", f"http://127.0.0.1:{wire.port}")]
        made = stack.enter_context(routing(*replicas, *flags, servers=servers, **environment))
        made.wires = wires
        yield made


@contextmanager
def routing(*flags: str, servers: list[Server] | None = None, **environment: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        command = [sys.executable, "-m", "penstock", "route", "--port", "0", "probe-s=0.1", *flags]
        with errors.open("w") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True, env={**os.environ, **environment}
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = re.search(r"https?://[^,\s]+", line)
            assert url, errors.read_text()
            made = Service(url.group(), process, servers or [], errors)
            key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else "none"
            with made.http(headers={"Authorization": f"Bearer {key}"}) as http:
                while servers and http.get("/router/replicas").text.count('"ready"') < len(servers):
                    time.sleep(0.05)
            yield made
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
