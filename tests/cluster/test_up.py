"""`penstock up` on a Ray cluster begun for it: replicas placed, one lost without a request lost, ended in order."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.upping import load, up

MODEL = "oracle:step_ms=4,vocab=256"


@pytest.mark.slow
def test_a_replica_is_lost_and_no_request_with_it(tmp_path: Path) -> None:
    flags = (MODEL, "--min-replicas", "2", "--max-replicas", "2", "replica-cpus=0.5", "--num-blocks", "2048")
    with up(tmp_path, *flags) as service:
        service.await_words("is ready on", 2)
        assert heard_from_outside(service.process.pid) == set(), "a cluster of our own is this machine's alone"
        assert len(service.status()["replicas"]) == 2

        async def law() -> list[str]:
            running = asyncio.create_task(load(service.url, 60, 12, 100))
            await asyncio.sleep(0.5)
            os.kill(service.server_pids()[0], signal.SIGKILL)
            return await running

        assert asyncio.run(law()) == []
        service.await_words("is lost")
        service.await_words("is ready on", 3)
        assert service.stop() == 0
        assert service.server_pids() == []


def heard_from_outside(pid: int) -> set[str]:
    """Addresses other than loopback that a process or its children listen on."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents = {int(own): int(parent) for own, parent in (line.split() for line in listed.splitlines()[1:])}

    def is_ours(one: int) -> bool:
        while one > 1 and one != pid:
            one = parents.get(one, 0)
        return one == pid

    inodes = set()
    for one in filter(is_ours, parents):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for name, own in (("tcp", "0100007F"), ("tcp6", "0000000000000000FFFF00000100007F")):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes and not words[1].startswith(own):
                found.add(f"{name} {words[1]}")
    return found
