"""Two machines out of one: network namespaces on a bridge, each with an address and a loopback of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager


def reason_against() -> str:
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    name = f"pst-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class Machine:
    def __init__(self, namespace: str, address: str) -> None:
        self._namespace = namespace
        self.address = address

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, run there."""
        return ["ip", "netns", "exec", self._namespace, *words]


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """They reach one another and are reached from here, through the bridge alone."""
    number = os.getpid() % 250
    bridge, network = f"pstbr{number}", f"10.213.{number}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{network}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        machines = []
        for place in (1, 2):
            space, outer, inner = f"pst{number}n{place}", f"pst{number}o{place}", f"pst{number}i{place}"
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("link", "set", inner, "netns", space)
            machine = Machine(space, f"{network}.{place}")
            for words in (
                ["ip", "addr", "add", f"{machine.address}/24", "dev", inner],
                ["ip", "link", "set", inner, "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                subprocess.run(machine.command(words), check=True)
            machines.append(machine)
        yield machines[0], machines[1]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
