"""Memory that another machine reads by itself, through NIXL where both ends have it installed: RDMA if there is some, else TCP.

    offering:  shared   mark | address | size | agent       in the place of a segment of one machine's memory
    fetching:  mapped, taken                                as there; what was placed is read over the network

An agent lives as long as a connection. Contents are not sealed on this way: every record has its checksum, and no more.
"""

import contextlib
import ctypes
import mmap
import secrets
import struct
import threading
import time
from importlib.util import find_spec
from typing import Any

from penstock.runtime.engine.peers.shared import HALVES, PLACE, SharedSegment

MARK = b"nixl"
READ_S = 10.0
"""For what was placed to be read."""
_HEAD = struct.Struct("<4sQQ")
_BACKEND = "UCX"


def is_installed() -> bool:
    return find_spec("nixl") is not None


class RemoteSegment(SharedSegment):
    """Written by one process and read by another, each of which has one of its own."""

    def __init__(self, num_bytes: int) -> None:
        """Raises OSError where there is no network that NIXL can use."""
        super().__init__(mmap.mmap(-1, num_bytes), f"penstock-{secrets.token_hex(8)}")
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            self._agent: Any = nixl_agent(self.name, nixl_agent_config(backends=[_BACKEND]))
            self._registered = self._agent.register_memory([(self._address, num_bytes, 0, "")], "DRAM")
        except Exception as error:
            raise OSError(f"NIXL cannot be used: {error}") from error

    @property
    def words(self) -> bytes:
        return _HEAD.pack(MARK, self._address, len(self._memory)) + bytes(self._agent.get_agent_metadata())

    def hide(self) -> None:
        """It has no name that others could find."""

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._agent.deregister_memory(self._registered)
        super().close()

    def attach(self, words: bytes) -> None:
        """Read what another process offers in words like ours."""
        try:
            _, self._theirs, num_bytes = _HEAD.unpack_from(words)
            self._peer = self._agent.add_remote_agent(words[_HEAD.size :])
        except Exception as error:
            raise OSError(f"NIXL knows no way to the peer: {error}") from error
        if num_bytes != len(self._memory):
            raise OSError("memory of another size than ours")

    def view(self, place: bytes) -> memoryview:
        view = super().view(place)
        begin, _ = PLACE.unpack(place)
        agent, end_s = self._agent, time.monotonic() + READ_S
        try:
            mine = agent.get_xfer_descs([(self._address + begin, len(view), 0)], "DRAM")
            theirs = agent.get_xfer_descs([(self._theirs + begin, len(view), 0)], "DRAM")
            transfer = agent.initialize_xfer("READ", mine, theirs, self._peer)
            state = agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < end_s:
                time.sleep(0.0001)
                state = agent.check_xfer_state(transfer)
            agent.release_xfer_handle(transfer)
        except Exception as error:
            raise OSError(f"what was placed could not be read: {error}") from error
        if state != "DONE":
            raise OSError(f"what was placed could not be read: {state}")
        return view


class SpareSegments:
    """Making a segment may take a second, for which no request waits: one is made ahead, on a thread of its own."""

    def __init__(self, half_bytes: int) -> None:
        self._num_bytes = HALVES * half_bytes
        self._spare: RemoteSegment | None = None
        self._is_making = False
        self._lock = threading.Lock()
        self._begin()

    def take(self) -> RemoteSegment | None:
        """None where NIXL is not installed, or none is ready yet."""
        with self._lock:
            spare, self._spare = self._spare, None
        self._begin()
        return spare

    def open(self, words: bytes) -> RemoteSegment | None:
        """What another process offers; None if it cannot be read from here, or not yet."""
        segment = self.take()
        try:
            if segment is not None:
                segment.attach(words)
        except OSError:
            return None
        return segment

    def _begin(self) -> None:
        with self._lock:
            if self._is_making or self._spare is not None or not is_installed():
                return
            self._is_making = True
        threading.Thread(target=self._make, name="kv-rdma", daemon=True).start()

    def _make(self) -> None:
        segment = None
        with contextlib.suppress(OSError):
            segment = RemoteSegment(self._num_bytes)
        with self._lock:
            self._spare, self._is_making = segment, False
