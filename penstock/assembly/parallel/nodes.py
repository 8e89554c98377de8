"""Ranks of one engine on several machines: whole stages of the pipeline lie on each.

    first node     the engine; its ranks are processes it begins. It tells the others by the store what they are to load
    other nodes    `penstock rank HOST:PORT`: joins, sees that the model is there, begins the node's ranks, ends them with the
                   engine, and joins the next one

A node that cannot compute its part says why before anything is loaded anywhere.
"""

import contextlib
import logging
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from penstock.assembly.parallel.ranks import (
    NODE_SETUP,
    READY,
    RankSetup,
    decoded,
    encoded,
    node_key,
    ranks_of,
    ranks_of_node,
)
from penstock.config import EngineConfig, split_address
from penstock.errors import PenstockError
from penstock.runtime import preload
from penstock.runtime.execution.parallel.machine.processes import SHARED_MEMORY, end_ranks, send_setup
from penstock.runtime.execution.parallel.world import Rendezvous, open_store

LOGGER = logging.getLogger(__name__)
LOOK_S = 0.5
CONNECT_S = 2.0
ASK_S = 30.0
"""How long the first node may take to say what this one computes."""

CheckModel = Callable[[EngineConfig], None]
"""Raises a PenstockError if this machine cannot compute its part."""


@dataclass(slots=True)
class Node:
    """One machine that computes for an engine elsewhere, engine after engine, until it is told to stop."""

    address: str
    """Where the first node's ranks meet."""
    here: str | None
    """By which address the others reach this machine; the one that the first is reached from, unless given."""
    check: CheckModel
    stopping: threading.Event

    def run(self) -> None:
        host, port = split_address(self.address)
        while not self.stopping.is_set():
            here = _own_address(host, port)
            if here is None:
                self.stopping.wait(LOOK_S)
                continue
            with contextlib.suppress(RuntimeError):  # the engine ended while we talked with it
                self._serve(host, port, self.here or here)
            self.stopping.wait(LOOK_S)

    def _serve(self, host: str, port: int, here: str) -> None:
        """One engine's life."""
        store = open_store(host, port, is_host=False)
        node = int(store.add("nodes", 1))
        store.wait([NODE_SETUP], timedelta(seconds=ASK_S))
        config = decoded(store.get(NODE_SETUP), EngineConfig)
        if node >= config.parallel.nodes:
            LOGGER.info("all machines of the engine at %s have come; this one waits for the next", self.address)
            self._wait_for_end(lambda: store.add("nodes", 0), [])
            return
        try:
            self.check(config)
        except PenstockError as error:
            store.set(node_key(node), str(error))
            raise
        held = ranks_of_node(ranks_of(config), config.parallel.nodes, node)
        LOGGER.info("node %d of the engine at %s: ranks %d to %d", node, self.address, held.start, held.stop - 1)
        home = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="penstock-ranks-", dir=home))
        rendezvous = Rendezvous(host, port, here, str(folder), shares_gpu=config.parallel.share_gpu)
        begun = [preload.take_rank() for _ in held]
        try:
            for rank, process in zip(held, begun, strict=True):
                send_setup(process, encoded(RankSetup(config, rank, rendezvous)))
            store.set(node_key(node), READY)
            self._wait_for_end(lambda: store.add("nodes", 0), begun)
        finally:
            end_ranks(begun)
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for_end(self, ask: Callable[[], object], begun: "list[subprocess.Popen[bytes]]") -> None:
        """Until a rank here has ended, or the engine is gone, or we are to stop."""
        while not self.stopping.wait(LOOK_S):
            ask()  # raises RuntimeError once nobody is there
            if any(process.poll() is not None for process in begun):
                return


def _own_address(host: str, port: int) -> str | None:
    """From where the first node is reached; None if it is not."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as probe:
            return str(probe.getsockname()[0])
    except OSError:
        return None
