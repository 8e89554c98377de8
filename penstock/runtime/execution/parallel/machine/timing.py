"""How long ranks of this machine take to add up their numbers: two processes that do nothing else, by size.

`python -m penstock.runtime.execution.parallel.machine.timing` prints a line of JSON for each way that ranks can take here. Its
second process is the same module; its input says where the two meet.
"""

import json
import subprocess
import sys
import time
from typing import Any

import torch

from penstock.runtime.execution.parallel.machine.processes import RankProcesses
from penstock.runtime.execution.parallel.world import Rendezvous, World
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.ops.parallel.collective import Peers, all_reduce

HOST = "127.0.0.1"
COMMAND = (sys.executable, "-m", "penstock.runtime.execution.parallel.machine.timing")
SIZES = (2 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20)
"""Bytes: the vector of one token of a small model, to those of a long prompt of a large one."""
SECONDS_EACH = 0.15
MIN_SUMS, MAX_SUMS = 7, 400
WARM_UP_SUMS = 5
RANKS = Ranks(2)


def time_sums(peers: Peers, device: torch.device) -> list[tuple[int, float]]:
    """The median time of a sum, by size. Ranks take the same number of sums: the first decides, and says so by a sum."""
    found = []
    for size in SIZES:
        x = torch.zeros(size // 4, device=device)
        for _ in range(WARM_UP_SUMS):
            begin_s = time.perf_counter()
            _sum(x, peers)
        count = torch.zeros(1, device=device)
        if peers.index == 0:
            taken_s = time.perf_counter() - begin_s
            count += min(max(int(SECONDS_EACH / taken_s), MIN_SUMS), MAX_SUMS)
        _sum(count, peers)
        times = []
        for _ in range(int(count)):
            begin_s = time.perf_counter()
            _sum(x, peers)
            times.append(time.perf_counter() - begin_s)
        found.append((size, sorted(times)[len(times) // 2]))
    return found


def _sum(x: torch.Tensor, peers: Peers) -> None:
    all_reduce(x, peers)
    if x.device.type == "cuda":
        torch.cuda.synchronize()


def time_here(device: str, *, shares_memory: bool) -> dict[str, Any]:
    """Of two ranks, the first of which is this process."""
    processes = RankProcesses(HOST)
    try:
        folder = str(processes.folder) if shares_memory else None
        rendezvous = Rendezvous(HOST, processes.store.port, folder=folder)
        setup = {"port": rendezvous.port, "folder": folder, "device": device}
        processes.take(1, subprocess.Popen(COMMAND, stdin=subprocess.PIPE), json.dumps(setup).encode())
        world = World(RANKS.place(0), rendezvous, _device(device, 0), processes.store)
        timed = time_sums(world.tensor, world.device)
        world.close()
    finally:
        processes.close()
    through = "shared memory" if shares_memory else "nccl" if device == "cuda" else "gloo"
    return {"through": through, "timed": timed}


def _device(kind: str, rank: int) -> torch.device:
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    return torch.device(kind)


def main() -> None:
    kinds = sys.argv[1:]
    if kinds:
        for shares_memory in (True, False) if kinds[0] == "cpu" else (False,):
            sys.stdout.write(json.dumps(time_here(kinds[0], shares_memory=shares_memory)) + "\n")
            sys.stdout.flush()
        return
    setup = json.loads(sys.stdin.readline())
    device = _device(setup["device"], 1)
    world = World(RANKS.place(1), Rendezvous(HOST, setup["port"], folder=setup["folder"]), device)
    time_sums(world.tensor, device)
    world.close()


if __name__ == "__main__":
    main()
